#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/nccl/endpoint.h"
#include "kvtransfer/nccl/transport.h"
#include "tests/testing/placement.h"

namespace lodestone::nccl {

// Why tests of this folder cannot run here, or "".
std::string WhyNoNccl(int gpus);

LinkTimes QuickTimes();
std::unique_ptr<Endpoint> MakeEndpoint(Side side, int device, int ctas = 8,
                                       LinkTimes times = QuickTimes(), size_t max_group = 0);

// Device memory of a test, freed by its destructor.
class DeviceBytes {
 public:
  DeviceBytes(int device, size_t size);
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes();
  std::span<std::byte> span() const { return {data_, size_}; }
  void Fill(uint64_t seed);         // bytes that depend on seed and place
  bool Holds(uint64_t seed) const;  // exactly the bytes of Fill(seed)
  void Clear();

 private:
  const int device_;
  const size_t size_;
  std::byte* data_ = nullptr;
};

// Of device memory.
bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b);
int64_t FreeBytes(int device);

double SecondsSince(TimePoint start);
// Bytes per second of a copy of `bytes` from GPU 0 to GPU 1 with peer access, the best of five.
double PeerCopyRate(size_t bytes);

// The next event of a stream, or nullopt after `limit`.
std::optional<SlotEvent> NextEvent(SlotStream& stream, std::chrono::milliseconds limit);
bool WaitFor(const std::function<bool()>& condition, std::chrono::milliseconds limit);

// Both ends of a link in this process.
struct LinkPair {
  std::unique_ptr<SlotReader> reader;
  std::unique_ptr<SlotWriter> writer;
};
// Opens it and waits until both ends are connected; the test fails otherwise.
LinkPair Connect(Endpoint& prefill, Endpoint& decode);
// Closes both ends and waits.
void Disconnect(LinkPair pair);

// A prefill worker's end in a process of its own, on GPU 0: sends slot after slot, each filled from its
// number, until it is killed.
class SenderProcess {
 public:
  SenderProcess(const Placement& placement, const std::string& session_key, size_t slot_bytes,
                int ctas = 8);
  SenderProcess(const SenderProcess&) = delete;
  SenderProcess& operator=(const SenderProcess&) = delete;
  ~SenderProcess() { Kill(); }
  // Closes its link, which may have failed, and opens another.
  void Relink(const std::string& session_key);
  void Freeze();  // SIGSTOP
  void Kill();    // SIGKILL, and waits for its end

 private:
  int pid_ = -1;
  int key_pipe_ = -1;
};
// The same for decode, on the placement's other GPU: receives slots and drops them. The key is this process's id.
class ReceiverProcess {
 public:
  ReceiverProcess(const Placement& placement, size_t slot_bytes);
  ReceiverProcess(const ReceiverProcess&) = delete;
  ReceiverProcess& operator=(const ReceiverProcess&) = delete;
  ~ReceiverProcess() { Kill(); }
  void Kill();
  const std::string& session_key() const { return session_key_; }

 private:
  int pid_ = -1;
  std::string session_key_;
};

// What main() runs if this process was started as one of the two; its exit status.
std::optional<int> RunAsChild();

}  // namespace lodestone::nccl

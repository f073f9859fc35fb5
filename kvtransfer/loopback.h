// Links inside one process, with faults: the same state machines run over it in tests, under a
// FakeClock, and in one-process verification.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kvtransfer/control.h"
#include "kvtransfer/transport.h"

namespace lodestone {

// What happens to one message or one slot on its way.
enum class LinkFault : uint8_t {
  kNone,
  kDrop,       // it never arrives
  kDuplicate,  // it arrives twice
  kDelay,      // it and what follows arrive `delay` later
  kSwap,       // it arrives after the next one
  kBreak,      // the connection breaks instead
};

// Called with every message or slot before it leaves; may also alter it.
struct LoopbackFaults {
  std::function<LinkFault(ToDecode&)> to_decode;
  std::function<LinkFault(ToPrefill&)> to_prefill;
  std::function<LinkFault(uint64_t link_seq, std::vector<std::byte>& bytes)> slot;
  std::chrono::nanoseconds delay = std::chrono::milliseconds(100);
};

namespace loopback_internal {
struct Stream;
struct Wire;
}  // namespace loopback_internal

// All prefill and decode workers of one process. Not thread-safe: one thread pumps everything.
class LoopbackNetwork {
 public:
  // `clock` is not owned. A silenced stream is dead after `dead_after`.
  LoopbackNetwork(Clock* clock, std::chrono::nanoseconds dead_after);
  ~LoopbackNetwork();

  LoopbackFaults faults;
  // Bytes wait for their grant, as over NCCL, instead of breaking the connection.
  bool takes_early_bytes = false;
  // A data connection that is closed holds its slots for so long, as the abort of one over NCCL.
  std::chrono::nanoseconds closing_takes{0};

  // For any number of senders.
  ControlDialer* dialer();
  DataDialer* data_dialer();
  // For the receiver that listens at `address`; made by the first call.
  ControlAcceptor* acceptor(const std::string& address);
  DataListener* listener(const std::string& address);

  // Every connection of `address` breaks, as when its process dies.
  void Break(const std::string& address);
  // Nothing from or to `address` arrives any more, without a break: a partition or a frozen host.
  void Silence(const std::string& address);

 private:
  class Dialer;
  class Endpoint;
  Endpoint& endpoint(const std::string& address);

  Clock* const clock_;
  const std::chrono::nanoseconds dead_after_;
  std::unique_ptr<Dialer> dialer_;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace lodestone

// A transport for tests of hand-offs with one GPU: both ends are in this process, and a slot moves
// by a copy within the device; with a rate, not faster than that.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "kvtransfer/transport.h"

namespace lodestone::nccl {

class CopyWire;

// What the dialer and the listener have in common: the wires by their session keys. Thread-safe.
class CopyNetwork {
 public:
  // `wake` is called when either end has news. A rate of 0 is the copy's own.
  CopyNetwork(int device, double bytes_per_second, std::function<void()> wake)
      : device_(device), bytes_per_second_(bytes_per_second), wake_(std::move(wake)) {}
  std::shared_ptr<CopyWire> WireOf(const std::string& session_key);

 private:
  const int device_;
  const double bytes_per_second_;
  const std::function<void()> wake_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<CopyWire>> wires_ GUARDED_BY(mutex_);
};

class CopyDialer final : public DataDialer {
 public:
  explicit CopyDialer(std::shared_ptr<CopyNetwork> network) : network_(std::move(network)) {}
  std::string_view name() const override { return "copy"; }
  bool slots_on_device() const override { return true; }
  std::unique_ptr<SlotWriter> Connect(const std::string& host, int port,
                                      const std::string& session_key) override;

 private:
  const std::shared_ptr<CopyNetwork> network_;
};

class CopyListener final : public DataListener {
 public:
  explicit CopyListener(std::shared_ptr<CopyNetwork> network) : network_(std::move(network)) {}
  std::string_view name() const override { return "copy"; }
  bool slots_on_device() const override { return true; }
  int port() const override { return 0; }
  std::unique_ptr<SlotReader> Open(const std::string& session_key) override;

 private:
  const std::shared_ptr<CopyNetwork> network_;
};

}  // namespace lodestone::nccl

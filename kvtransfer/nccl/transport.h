// Slots over NCCL between two GPUs. The unique id of the pair's communicator is the session key of
// the link: decode makes it, it travels over gRPC only, and nothing listens on a data port.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kvtransfer/nccl/endpoint.h"
#include "kvtransfer/transport.h"

namespace lodestone::nccl {

inline constexpr std::string_view kTransportName = "nccl";

// Prefill side. `endpoint` is not owned and must outlive the writers.
class Dialer final : public DataDialer {
 public:
  explicit Dialer(Endpoint* endpoint) : endpoint_(endpoint) {}
  std::string_view name() const override { return kTransportName; }
  size_t session_key_bytes() const override { return kUniqueIdBytes; }
  // `host` and `port` are not used. A session key that is no unique id fails at the first Poll.
  std::unique_ptr<SlotWriter> Connect(const std::string& host, int port,
                                      const std::string& session_key) override;

 private:
  Endpoint* const endpoint_;
};

// Decode side.
class Listener final : public DataListener {
 public:
  explicit Listener(Endpoint* endpoint) : endpoint_(endpoint) {}
  std::string_view name() const override { return kTransportName; }
  int port() const override { return 0; }
  absl::StatusOr<std::string> NewSessionKey() override;
  std::unique_ptr<SlotReader> Open(const std::string& session_key) override;

 private:
  Endpoint* const endpoint_;
};

}  // namespace lodestone::nccl

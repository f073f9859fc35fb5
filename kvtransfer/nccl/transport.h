// Slots over NCCL between two GPUs. The unique id of the pair's communicator is the session key of
// the link: decode makes it, it travels over gRPC only, and nothing listens on a data port.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kvtransfer/nccl/endpoint.h"
#include "kvtransfer/transport.h"

namespace lodestone::nccl {

inline constexpr std::string_view kTransportName = "nccl";

// Prefill side. The endpoint must outlive the writers; it is not owned, or is.
class Dialer final : public DataDialer {
 public:
  explicit Dialer(Endpoint* endpoint) : endpoint_(endpoint) {}
  explicit Dialer(std::unique_ptr<Endpoint> endpoint)
      : owned_(std::move(endpoint)), endpoint_(owned_.get()) {}
  std::string_view name() const override { return kTransportName; }
  bool slots_on_device() const override { return true; }
  bool takes_early_bytes() const override { return true; }
  std::string place() const override { return endpoint_->place(); }
  absl::Status health() const override { return endpoint_->health(); }
  size_t session_key_bytes() const override { return kUniqueIdBytes; }
  // `host` and `port` are not used. A session key that is no unique id fails at the first Poll.
  std::unique_ptr<SlotWriter> Connect(const std::string& host, int port,
                                      const std::string& session_key) override;

 private:
  const std::unique_ptr<Endpoint> owned_;
  Endpoint* const endpoint_;
};

// Decode side.
class Listener final : public DataListener {
 public:
  explicit Listener(Endpoint* endpoint) : endpoint_(endpoint) {}
  explicit Listener(std::unique_ptr<Endpoint> endpoint)
      : owned_(std::move(endpoint)), endpoint_(owned_.get()) {}
  std::string_view name() const override { return kTransportName; }
  bool slots_on_device() const override { return true; }
  bool takes_early_bytes() const override { return true; }
  std::string place() const override { return endpoint_->place(); }
  absl::Status health() const override { return endpoint_->health(); }
  // NCCL wants a GPU of a host per rank.
  bool Reaches(const TransportOffer& offer) const override {
    return offer.name == kTransportName && offer.place != endpoint_->place();
  }
  int port() const override { return 0; }
  absl::StatusOr<std::string> NewSessionKey() override;
  std::unique_ptr<SlotReader> Open(const std::string& session_key) override;

 private:
  const std::unique_ptr<Endpoint> owned_;
  Endpoint* const endpoint_;
};

}  // namespace lodestone::nccl

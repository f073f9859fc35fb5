// Slots over TCP: one connection and one I/O thread per link, frames as in kvtransfer/frame.h. The
// payload goes straight from staging slot to granted receive slot.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvtransfer/link.h"
#include "kvtransfer/transport.h"

namespace lodestone {

// Prefill side. `wake` (may be empty) is called from I/O threads whenever Poll has something new.
class TcpDialer final : public DataDialer {
 public:
  explicit TcpDialer(LinkTimes times = {}, std::function<void()> wake = {});
  std::string_view name() const override { return "tcp"; }
  std::unique_ptr<SlotWriter> Connect(const std::string& host, int port,
                                      const std::string& session_key) override;

 private:
  const LinkTimes times_;
  const std::function<void()> wake_;
};

// Decode side. Reads at most one header from a connection before it has proved that it knows the
// key of a session; strangers are cut off after 2 s, and no more than 32 of them are listened to.
class TcpListener final : public DataListener {
 public:
  // Listens at once on a thread of its own; port 0 takes any free one. INVALID_ARGUMENT if `host`
  // is no address of this machine's kind, UNAVAILABLE if the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Start(const std::string& host, int port,
                                                            LinkTimes times = {},
                                                            std::function<void()> wake = {});
  ~TcpListener() override;  // REQUIRES: its readers are gone

  std::string_view name() const override { return "tcp"; }
  int port() const override { return port_; }
  std::unique_ptr<SlotReader> Open(const std::string& session_key) override;

 private:
  class Acceptor;
  TcpListener(std::unique_ptr<Acceptor> acceptor, int port, LinkTimes times,
              std::function<void()> wake);

  const std::unique_ptr<Acceptor> acceptor_;
  const int port_;
  const LinkTimes times_;
  const std::function<void()> wake_;
};

}  // namespace lodestone

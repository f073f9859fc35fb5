#include "router/http_server.h"

#include <set>

#include <absl/strings/str_cat.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/logging.h"
#include "router/body_budget.h"
#include "router/http_connection.h"

namespace lodestone {
namespace {

using Tcp = asio::ip::tcp;
using Error = boost::system::error_code;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
// The kernel's share of what waits for a client that does not read; without a limit it takes
// megabytes.
constexpr int kSocketSendBytes = 256 << 10;

class BeastServer final : public HttpServer {
 public:
  BeastServer(asio::io_context& loop, Tcp::acceptor acceptor, const HttpLimits& limits,
              HttpHandler* handler)
      : loop_(loop),
        acceptor_(std::move(acceptor)),
        limits_(limits),
        bodies_(limits.max_held_body_bytes),
        handler_(handler),
        tasks_(loop) {}

  void Open() { tasks_.Spawn(Accept()); }
  int port() const override { return port_; }
  void set_port(int port) { port_ = port; }
  int64_t num_connections() const override { return static_cast<int64_t>(connections_.size()); }
  int64_t held_body_bytes() const override { return bodies_.held(); }

  Task<void> Stop(TimePoint deadline) override {
    stopping_ = true;
    Error ignored;
    acceptor_.close(ignored);
    CloseConnections([](const HttpConnection& connection) { return !connection.in_request(); });
    const bool ended = co_await tasks_.WaitUntil(deadline);
    if (ended) co_return;
    CloseConnections([](const HttpConnection&) { return true; });
    co_await tasks_.WaitUntil(RealClock()->Now() + std::chrono::seconds(5));
  }

 private:
  template <typename Choose>
  void CloseConnections(Choose choose) {
    const std::set<std::shared_ptr<HttpConnection>> connections = connections_;
    for (const auto& connection : connections) {
      if (choose(*connection)) connection->Close();
    }
  }

  Task<void> Accept() {
    while (!stopping_) {
      auto [error, socket] = co_await acceptor_.async_accept(kTuple);
      if (stopping_ || error == asio::error::operation_aborted) break;
      if (error) {
        LOG_EVERY_SECONDS(WARNING, 5) << "cannot accept a connection: " << error.message();
        co_await SleepUntil(loop_, RealClock()->Now() + std::chrono::milliseconds(50));
        continue;
      }
      if (num_connections() >= limits_.max_connections) {
        RefuseConnection(socket);
        continue;
      }
      socket.set_option(Tcp::no_delay(true), error);
      socket.set_option(Tcp::socket::send_buffer_size(kSocketSendBytes), error);
      tasks_.Spawn(Serve(std::make_shared<HttpConnection>(loop_, std::move(socket), limits_,
                                                          &bodies_, handler_, stopping_)));
    }
  }

  // The answer fits into the empty buffer of a new socket: nothing has to wait for it.
  void RefuseConnection(Tcp::socket& socket) {
    const std::string why = absl::StrCat(num_connections(), " connections are open, limit is ",
                                         limits_.max_connections);
    LOG_EVERY_SECONDS(WARNING, 5) << "refusing a connection: " << why;
    const HttpResponse refusal = handler_->Refusal(503, why);
    std::string text = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n";
    for (const auto& [name, value] : refusal.headers)
      absl::StrAppend(&text, name, ": ", value, "\r\n");
    absl::StrAppend(&text, "Connection: close\r\nContent-Length: ", refusal.body.size(), "\r\n\r\n",
                    refusal.body);
    Error ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
    socket.shutdown(Tcp::socket::shutdown_send, ignored);
  }

  Task<void> Serve(std::shared_ptr<HttpConnection> connection) {
    connections_.insert(connection);
    co_await connection->Serve();
    connections_.erase(connection);
  }

  asio::io_context& loop_;
  Tcp::acceptor acceptor_;
  const HttpLimits limits_;
  BodyBudget bodies_;
  HttpHandler* const handler_;
  std::set<std::shared_ptr<HttpConnection>> connections_;
  TaskGroup tasks_;
  int port_ = 0;
  bool stopping_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(asio::io_context& loop,
                                                              const std::string& host, int port,
                                                              const HttpLimits& limits,
                                                              HttpHandler* handler) {
  Error error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("not an IP address to listen on: ", host));
  }
  Tcp::acceptor acceptor(loop);
  const Tcp::endpoint endpoint(address, static_cast<uint16_t>(port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1024, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port, ": ", error.message()));
  }
  const int bound = acceptor.local_endpoint(error).port();
  auto server = std::make_unique<BeastServer>(loop, std::move(acceptor), limits, handler);
  server->set_port(bound);
  server->Open();
  return server;
}

}  // namespace lodestone

// The HTTP server alone: its loop on one thread, a pool beside it, clients on others.
#include "router/http_server.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/thread_pool.hpp>
#include <gtest/gtest.h>

#include "tests/router/http_client.h"

namespace lodestone {
namespace {

// Answers with the body of the request, in pieces where the path says so, after a detour over
// another thread.
class EchoHandler final : public HttpHandler {
 public:
  explicit EchoHandler(asio::io_context& loop) : loop_(loop) {}
  ~EchoHandler() override { pool_.join(); }

  Task<void> Handle(const HttpRequest& request, HttpExchange& exchange) override {
    const std::function<std::string()> detour = [&request] { return request.body + "!"; };
    const std::string body = co_await RunOn(pool_, loop_, detour);
    if (request.path != "/pieces") {
      // A named one: GCC 12 destroys a temporary of a co_await twice.
      HttpResponse response{.content_type = "text/plain", .body = body};
      co_await exchange.Send(std::move(response));
      co_return;
    }
    exchange.StartStream({.status = 200, .content_type = "text/plain"});
    for (char c : body) {
      exchange.Write(std::string(64, c) + "\n");
      const absl::Status drained = co_await exchange.Drain(1024);
      if (!drained.ok()) break;
    }
    co_await exchange.EndStream(false);
    ++streams_ended;
  }
  HttpResponse Refusal(int status, std::string message) override {
    return {.status = status, .content_type = "text/plain", .body = std::move(message)};
  }

  std::atomic<int> streams_ended = 0;

 private:
  asio::io_context& loop_;
  asio::thread_pool pool_{2};
};

class HttpServerTest : public testing::Test {
 protected:
  void StartServer(const HttpLimits& limits = {}) {
    server_ = HttpServer::Start(loop_, "127.0.0.1", 0, limits, &handler_).value();
    port_ = server_->port();
    thread_ = std::thread([this] { loop_.run(); });
  }
  void TearDown() override {
    asio::post(loop_, [this] { Spawn(loop_, Stop()); });
    thread_.join();
    server_.reset();
  }
  Task<void> Stop() {
    co_await server_->Stop(RealClock()->Now() + std::chrono::seconds(5));
    work_.reset();
  }

  asio::io_context loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(loop_);
  EchoHandler handler_{loop_};
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::thread thread_;
};

TEST_F(HttpServerTest, ManyClientsEachGetTheirOwnAnswers) {
  StartServer();
  std::atomic<int> right = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      HttpClient connection(port_);
      for (int i = 0; i < 20; ++i) {
        const std::string body = std::to_string(client) + ":" + std::to_string(i);
        connection.Send("POST", i % 2 == 0 ? "/" : "/pieces", body);
        const ClientResponse response = connection.Receive();
        const bool whole = response.body.starts_with(i % 2 == 0 ? body : std::string(64, body[0]));
        if (response.status == 200 && whole) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 80);
}

TEST_F(HttpServerTest, AClientThatLeavesEndsItsStreamOnly) {
  StartServer();
  {
    HttpClient leaves(port_);
    leaves.Send("POST", "/pieces", std::string(200'000, 'x'));
    EXPECT_EQ(leaves.ReceiveHead().status, 200);
  }
  EXPECT_EQ(Fetch(port_, "POST", "/", "still here").body, "still here!");
  const auto until = RealClock()->Now() + std::chrono::seconds(10);
  while (handler_.streams_ended == 0 && RealClock()->Now() < until) std::this_thread::yield();
  EXPECT_EQ(handler_.streams_ended, 1);
}

TEST_F(HttpServerTest, ABodyBeyondTheLimitIsRefusedWithBothNumbers) {
  StartServer({.max_body_bytes = 100});
  const ClientResponse response = Fetch(port_, "POST", "/", std::string(101, 'x'));
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.body, "the body has 101 bytes, limit is 100");
}

}  // namespace
}  // namespace lodestone

// What is too slow to come, or to be taken: heads, bodies, idle connections, clients that do not
// read. A server without a router, with short limits.
#include "router/http_server.h"

#include <atomic>
#include <functional>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/http_client.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr char kHead[] = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 8\r\n\r\n";

// Answers a body with the body, and anything else with `endless_chunks` chunks of 64 KiB.
class TestHandler final : public HttpHandler {
 public:
  Task<void> Handle(const HttpRequest& request, HttpExchange& exchange) override {
    if (!request.body.empty()) {
      HttpResponse response;
      response.body = request.body;
      co_await exchange.Send(std::move(response));
      co_return;
    }
    exchange.StartStream({});
    absl::Status status;
    while (status.ok()) {
      exchange.Write(std::string(64 << 10, 'x'));
      status = co_await exchange.Drain(kMaxOutputBytes);
    }
    end_ = std::string(status.message());
    co_await exchange.EndStream(true);
    ended_ = true;
  }
  HttpResponse Refusal(int status, std::string message) override {
    HttpResponse response;
    response.status = status;
    response.body = std::move(message);
    return response;
  }
  bool ended() const { return ended_; }
  // REQUIRES: ended().
  const std::string& end() const { return end_; }

 private:
  std::string end_;
  std::atomic<bool> ended_{false};
};

class HttpTimesTest : public testing::Test {
 protected:
  ~HttpTimesTest() override {
    asio::post(loop_, [this] { Spawn(loop_, Stop()); });
    thread_.join();
  }
  void Start(HttpLimits limits) {
    server_ = HttpServer::Start(loop_, "127.0.0.1", 0, limits, &handler_).value();
    thread_ = std::thread([this] { loop_.run(); });
  }
  Task<void> Stop() {
    co_await server_->Stop(RealClock()->Now());
    guard_.reset();
  }

  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(loop_);
  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

double Seconds(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(HttpTimesTest, AHeadThatDoesNotEndIs408) {
  Start({.header_timeout = milliseconds(200)});
  HttpClient client(server_->port());
  client.SendRaw("POST / HTTP/1.1\r\nHost:");
  EXPECT_EQ(client.Receive().status, 408);
  HttpClient in_time(server_->port());
  in_time.SendRaw("POST / HTTP/1.1\r\nHost:");
  in_time.SendRaw(" t\r\nContent-Length: 8\r\n\r\n12345678");
  EXPECT_EQ(in_time.Receive().body, "12345678");
}

TEST_F(HttpTimesTest, ABodyThatStopsIs408) {
  Start({.body_timeout = milliseconds(200)});
  HttpClient client(server_->port());
  client.SendRaw(std::string(kHead) + "1234");
  ClientResponse response;
  const double seconds = Seconds([&] { response = client.Receive(); });
  EXPECT_EQ(response.status, 408);
  EXPECT_THAT(response.body, HasSubstr("too long to arrive"));
  EXPECT_GE(seconds, 0.15);
}

// Trickling buys time at the minimum rate, not more.
TEST_F(HttpTimesTest, ABodyMayTakeLongerTheMoreOfItCame) {
  Start({.body_timeout = milliseconds(100), .min_body_bytes_per_second = 4});
  HttpClient client(server_->port());
  client.SendRaw(std::string(kHead) + "1234");  // buys a second
  std::this_thread::sleep_for(milliseconds(300));
  client.SendRaw("5678");
  EXPECT_EQ(client.Receive().body, "12345678");
  HttpClient slow(server_->port());
  slow.SendRaw(std::string(kHead) + "123");
  EXPECT_EQ(slow.Receive().status, 408);
}

TEST_F(HttpTimesTest, AnIdleConnectionIsClosed) {
  Start({.idle_timeout = milliseconds(100)});
  HttpClient client(server_->port());
  client.SendRaw(std::string(kHead) + "12345678");
  EXPECT_EQ(client.Receive().status, 200);
  EXPECT_EQ(client.Receive().status, 0);
}

TEST_F(HttpTimesTest, AClientThatDoesNotReadIsCut) {
  Start({.stall_timeout = milliseconds(300)});
  HttpClient client(server_->port());
  client.SendRaw("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  const double seconds = Seconds([&] {
    while (!handler_.ended()) std::this_thread::sleep_for(milliseconds(5));
  });
  EXPECT_EQ(handler_.end(), "the client does not read");
  EXPECT_GE(seconds, 0.25);
}

TEST_F(HttpTimesTest, AClientThatReadsSlowlyIsNotCut) {
  Start({.stall_timeout = milliseconds(400)});
  HttpClient client(server_->port());
  client.SendRaw("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.ReceiveHead().status, 200);
  const auto end = std::chrono::steady_clock::now() + milliseconds(1'200);
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(client.SkipSome());
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_FALSE(handler_.ended());
}

}  // namespace
}  // namespace lodestone

#include "cli/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/test_server.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

HttpClient ClientOf(const TestServer& server, std::string key = "") {
  return HttpClient(*ParseHttpUrl(server.url()), std::move(key));
}

TEST(ParseHttpUrlTest, TakesHostPortAndPrefix) {
  const auto url = ParseHttpUrl("http://localhost:8080/base/");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "localhost");
  EXPECT_EQ(url->port, "8080");
  EXPECT_EQ(url->prefix, "/base");
}

TEST(ParseHttpUrlTest, PortIs80WithoutOne) {
  const auto url = ParseHttpUrl("http://[::1]");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, "80");
}

TEST(ParseHttpUrlTest, RefusesOtherTextsByName) {
  for (const char* text : {"", "https://a:1", "http://", "http://a:x", "http://a:123456", "a:80"}) {
    const auto url = ParseHttpUrl(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_THAT(std::string(url.status().message()), HasSubstr("\"" + std::string(text) + "\""));
  }
}

TEST(HttpClientTest, PostSendsBodyAndKeyAndReadsTheAnswer) {
  std::string seen;
  TestServer server([&](std::string_view request) {
    seen = request;
    return std::vector<std::string>{OkReply("{\"a\":1}")};
  });
  const auto reply = ClientOf(server, "secret").Post("/v1/x", "{}", milliseconds(5000));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, "{\"a\":1}");
  EXPECT_THAT(seen, HasSubstr("POST /v1/x HTTP/1.1\r\n"));
  EXPECT_THAT(seen, HasSubstr("Authorization: Bearer secret\r\n"));
}

TEST(HttpClientTest, ErrorStatusIsAReplyWithItsRetryTime) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{Reply("429 Too Many", "Retry-After: 7\r\n", "full")};
  });
  const auto reply = ClientOf(server).Get("/", milliseconds(5000));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 429);
  EXPECT_EQ(reply->retry_after_seconds, 7);
}

TEST(HttpClientTest, ChunkedBodyArrivesPieceByPiece) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                                    "3\r\nabc\r\n", "2\r\nde\r\n", "0\r\n\r\n"};
  });
  std::string collected;
  const auto reply =
      ClientOf(server).Post("/", "", milliseconds(5000), [&](std::string_view bytes) {
        collected += bytes;
        return true;
      });
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(collected, "abcde");
}

TEST(HttpClientTest, AnswerThatBreaksOffIsAnError) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"};
  });
  const auto reply = ClientOf(server).Get("/", milliseconds(5000));
  EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
}

TEST(HttpClientTest, SilentServerEndsAtTheDeadline) {
  std::atomic<bool> end{false};
  TestServer server([&](std::string_view) {
    while (!end) std::this_thread::yield();
    return std::vector<std::string>{};
  });
  const auto reply = ClientOf(server).Get("/", milliseconds(50));
  end = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
}

TEST(HttpClientTest, RefusedConnectionNamesThePlace) {
  std::string url;
  {
    url = TestServer([](std::string_view) { return std::vector<std::string>{}; }).url();
  }
  const auto reply = HttpClient(*ParseHttpUrl(url)).Get("/", milliseconds(1000));
  EXPECT_TRUE(absl::IsUnavailable(reply.status()));
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("127.0.0.1:"));
}

TEST(SseParserTest, EventsAreWholeWhereverTheBytesAreCut) {
  const std::string stream = ": comment\n\ndata: one\n\ndata:two\r\ndata: more\r\n\r\nevent: x\n\n";
  for (size_t step = 1; step <= stream.size(); ++step) {
    SseParser parser;
    std::vector<std::string> events;
    for (size_t i = 0; i < stream.size(); i += step) {
      parser.Feed(std::string_view(stream).substr(i, step), [&](std::string_view data) {
        events.emplace_back(data);
        return true;
      });
    }
    EXPECT_THAT(events, ElementsAre("one", "two\nmore")) << "step " << step;
  }
}

}  // namespace
}  // namespace lodestone

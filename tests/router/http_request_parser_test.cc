#include "router/http_request_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace lodestone {
namespace {

using Error = HttpRequestParser::Error;
namespace http = boost::beast::http;

constexpr std::string_view kChunkedHead =
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

// Feeds the head, then the body as a connection does, `step` bytes at a time.
Error Feed(HttpRequestParser& parser, std::string_view head, std::string_view body, size_t step) {
  Error error;
  parser.parser().put(boost::asio::buffer(head.data(), head.size()), error);
  std::string unread;
  while (!error && !parser.parser().is_done()) {
    unread.erase(0, parser.PutBody(boost::asio::buffer(unread), error));
    if (error != http::error::need_more) continue;
    if (body.empty()) return error;
    error = {};
    unread += body.substr(0, step);
    body.remove_prefix(std::min(step, body.size()));
  }
  return error;
}

TEST(HttpRequestParserTest, TakesAnEmptyChunkedBodyByteByByte) {
  const HttpLimits limits;
  HttpRequestParser parser(limits);
  EXPECT_FALSE(Feed(parser, kChunkedHead, "0\r\n\r\n", 1));
  ASSERT_TRUE(parser.parser().is_done());
  EXPECT_EQ(parser.Take().body, "");
}

TEST(HttpRequestParserTest, TakesTheSameChunkedBodyInAnyPieces) {
  const HttpLimits limits;
  for (size_t step = 1; step < 32; ++step) {
    HttpRequestParser parser(limits);
    EXPECT_FALSE(Feed(parser, kChunkedHead, "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: u\r\n\r\n", step));
    ASSERT_TRUE(parser.parser().is_done()) << step;
    const HttpRequest request = parser.Take();
    EXPECT_EQ(request.body, "abcde");
    EXPECT_EQ(request.Header("t"), "u");
  }
}

TEST(HttpRequestParserTest, RefusesEndlessChunkLinesAndTrailers) {
  const HttpLimits limits;
  for (const std::string_view start : {"5;", "0\r\nT: "}) {
    HttpRequestParser parser(limits);
    const std::string endless = std::string(start) + std::string(1 << 20, 'x');
    const Error error = Feed(parser, kChunkedHead, endless, 4096);
    EXPECT_EQ(error, http::error::header_limit) << error.message();
    EXPECT_EQ(parser.RefusalOf(error).status, 431);
  }
}

TEST(HttpRequestParserTest, TrailersCountAsHeaders) {
  const HttpLimits limits;
  HttpRequestParser parser(limits);
  std::string body = "0\r\n";
  for (int64_t i = 0; i < limits.max_headers; ++i) body += "T: u\r\n";
  EXPECT_FALSE(Feed(parser, kChunkedHead, body + "\r\n", 4096));
  ASSERT_TRUE(parser.CheckHead());
  EXPECT_EQ(parser.CheckHead()->message, "the request has 102 headers, limit is 100");
}

TEST(HttpRequestParserTest, RefusesTransferEncodingsThatItDoesNotRead) {
  const HttpLimits limits;
  for (const std::string_view encoding :
       {"gzip", "gzip, chunked", "chunked\r\nTransfer-Encoding: x"}) {
    HttpRequestParser parser(limits);
    const std::string head = "POST / HTTP/1.1\r\nTransfer-Encoding: " + std::string(encoding) +
                             "\r\nContent-Length: 3\r\n\r\n";
    Error error;
    parser.parser().put(boost::asio::buffer(head), error);
    if (error) continue;  // refused by itself
    ASSERT_TRUE(parser.CheckHead()) << encoding;
    EXPECT_EQ(parser.CheckHead()->status, 501);
  }
}

}  // namespace
}  // namespace lodestone

#include "router/http_request_parser.h"

#include <iterator>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <boost/beast/core/error.hpp>

namespace lodestone {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = HttpRequestParser::Error;

std::string Text(beast::string_view view) { return std::string(view.data(), view.size()); }

// What the parser's error means to the client; 0: just close the connection.
int StatusOf(const Error& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit || error == http::error::buffer_overflow) return 413;
  if (error == beast::error::timeout) return 408;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  if (error.category() == make_error_code(http::error::bad_method).category()) return 400;
  return 0;
}

std::string Explain(int status, const Error& error, const HttpLimits& limits,
                    const std::string& announced) {
  switch (status) {
    case 408:
      return "the request took too long to arrive";
    case 413:
      return absl::StrCat("the body has ",
                          announced.empty() ? "more" : announced.substr(0, 20), " bytes, limit is ",
                          limits.max_body_bytes);
    case 431:
      return absl::StrCat("the headers have more bytes than the limit of ",
                          limits.max_header_bytes);
    default:
      return absl::StrCat("not a valid HTTP request: ", error.message());
  }
}

// From the request line to the empty line; Beast's own limit, which bounds what is read, does not
// count all of it.
int64_t HeadBytes(const http::request<http::string_body>& head) {
  constexpr size_t kAroundLine = std::string_view("  HTTP/1.1\r\n\r\n").size();
  constexpr size_t kAroundField = std::string_view(": \r\n").size();
  size_t bytes = head.method_string().size() + head.target().size() + kAroundLine;
  for (const auto& field : head) {
    bytes += field.name_string().size() + field.value().size() + kAroundField;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

HttpRequestParser::HttpRequestParser(const HttpLimits& limits) : limits_(limits) {
  parser_.header_limit(static_cast<uint32_t>(limits.max_header_bytes));
  parser_.body_limit(static_cast<uint64_t>(limits.max_body_bytes));
  count_chunk_ = [this](uint64_t, beast::string_view extension, Error& error) {
    if (++num_chunks_ > limits_.max_chunks) {
      bad_chunk_ = {413, absl::StrCat("the body has ", num_chunks_, " chunks, limit is ",
                                      limits_.max_chunks)};
    } else if (static_cast<int64_t>(extension.size()) > limits_.max_chunk_extension_bytes) {
      bad_chunk_ = {431, absl::StrCat("the extension of a chunk has ", extension.size(),
                                      " bytes, limit is ", limits_.max_chunk_extension_bytes)};
    }
    if (bad_chunk_.status != 0) error = http::error::bad_chunk_extension;
  };
  parser_.on_chunk_header(count_chunk_);
}

size_t HttpRequestParser::PutBody(boost::asio::const_buffer bytes, Error& error) {
  // What is left of a chunked body has at least these 5 bytes. With "0\r\n" and one byte Beast 1.81
  // ends the process by an assertion.
  constexpr size_t kLastChunkBytes = std::string_view("0\r\n\r\n").size();
  if (bytes.size() < (parser_.chunked() ? kLastChunkBytes : 1)) {
    error = http::error::need_more;
    return 0;
  }
  const size_t used = parser_.put(bytes, error);
  // The line of a chunk or the trailers, which have no limit of their own.
  if (error == http::error::need_more &&
      static_cast<int64_t>(bytes.size() - used) > limits_.max_header_bytes) {
    error = http::error::header_limit;
  }
  return used;
}

std::string HttpRequestParser::method() const { return Text(parser_.get().method_string()); }

bool HttpRequestParser::expects_continue() const {
  return absl::AsciiStrToLower(Text(parser_.get()[http::field::expect])) == "100-continue";
}

std::optional<int64_t> HttpRequestParser::announced_body_bytes() const {
  const auto length = parser_.content_length();
  if (!length) return std::nullopt;
  return static_cast<int64_t>(*length);  // at most max_body_bytes
}

std::optional<HttpRefusal> HttpRequestParser::CheckHead() const {
  const http::request<http::string_body>& head = parser_.get();
  if (static_cast<int64_t>(head.target().size()) > limits_.max_target_bytes) {
    return HttpRefusal{414, absl::StrCat("the request target has ", head.target().size(),
                                         " bytes, limit is ", limits_.max_target_bytes)};
  }
  if (const int64_t bytes = HeadBytes(head); bytes > limits_.max_header_bytes) {
    return HttpRefusal{431, absl::StrCat("the head of the request has ", bytes,
                                         " bytes, limit is ", limits_.max_header_bytes)};
  }
  const int64_t num_headers = std::distance(head.begin(), head.end());
  if (num_headers > limits_.max_headers) {
    return HttpRefusal{431, absl::StrCat("the request has ", num_headers, " headers, limit is ",
                                         limits_.max_headers)};
  }
  const auto [first, last] = head.equal_range(http::field::transfer_encoding);
  for (auto field = first; field != last; ++field) {
    const std::string encoding = Text(field->value());
    if (absl::AsciiStrToLower(encoding) == "chunked" && std::next(field) == last) continue;
    return HttpRefusal{501, absl::StrCat("Transfer-Encoding is ", encoding.substr(0, 64),
                                         ", only one that is chunked is supported")};
  }
  return std::nullopt;
}

HttpRefusal HttpRequestParser::RefusalOf(const Error& error) const {
  if (bad_chunk_.status != 0) return bad_chunk_;
  const int status = StatusOf(error);
  if (status == 0) return {};
  const std::string announced = Text(parser_.get()[http::field::content_length]);
  return {.status = status, .message = Explain(status, error, limits_, announced)};
}

HttpRequest HttpRequestParser::Take() {
  http::request<http::string_body> message = parser_.release();
  HttpRequest request;
  request.method = Text(message.method_string());
  const std::string target = Text(message.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(absl::AsciiStrToLower(Text(field.name_string())),
                                 Text(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

}  // namespace lodestone

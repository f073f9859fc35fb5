// Bytes to one HTTP request under limits: no sockets and no clock, so that a fuzzer can call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "router/http_request.h"

namespace lodestone {

// Why a request is refused.
struct HttpRefusal {
  int status = 0;  // 0: there is nobody to answer, just close the connection
  std::string message{};
};

class HttpRequestParser {
 public:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // `limits` must outlive this.
  explicit HttpRequestParser(const HttpLimits& limits);
  HttpRequestParser(const HttpRequestParser&) = delete;
  HttpRequestParser& operator=(const HttpRequestParser&) = delete;

  // To be fed with the head; then, once CheckHead() finds nothing, PutBody until it is done.
  Parser& parser() { return parser_; }
  // How many of `bytes` it took. need_more: nothing happens without more bytes behind these; then
  // what the caller holds is at most `max_header_bytes`. REQUIRES: parser().is_header_done().
  size_t PutBody(boost::asio::const_buffer bytes, Error& error);
  std::string method() const;
  unsigned version() const { return parser_.get().version(); }  // 10 or 11
  bool expects_continue() const;
  // Of the body as the head announces it; nullopt for a chunked one. REQUIRES: is_header_done().
  std::optional<int64_t> announced_body_bytes() const;
  // What is wrong with the head, or with its trailers a whole request: a target (414) or headers
  // (431) over the limits, or a Transfer-Encoding that is not just "chunked" (501): proxies in
  // front may see another end of such a body. REQUIRES: parser().is_header_done().
  std::optional<HttpRefusal> CheckHead() const;
  HttpRefusal RefusalOf(const Error& error) const;
  // The request without `received_at`. REQUIRES: parser().is_done(); call once.
  HttpRequest Take();

 private:
  const HttpLimits& limits_;
  int64_t num_chunks_ = 0;
  HttpRefusal bad_chunk_;  // status 0: none
  std::function<void(uint64_t, boost::beast::string_view, Error&)> count_chunk_;
  Parser parser_;  // keeps a reference to count_chunk_
};

}  // namespace lodestone

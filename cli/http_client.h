#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace lodestone {

// "http://host:port/prefix" in parts; "prefix" has no final slash.
struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string prefix;
};
// INVALID_ARGUMENT with the text for anything else, https included (put a proxy before it).
absl::StatusOr<HttpUrl> ParseHttpUrl(std::string_view text);

struct HttpReply {
  int status = 0;
  double retry_after_seconds = 0;  // of the Retry-After header; 0 without
  std::string body;
};

// Blocking HTTP/1.1 requests, one connection each. Every call has a deadline. Thread-safe (const).
class HttpClient {
 public:
  // `api_key` goes into the Authorization header; empty: none.
  explicit HttpClient(HttpUrl url, std::string api_key = "")
      : url_(std::move(url)), api_key_(std::move(api_key)) {}

  // Called with the body as it arrives; false ends the request at once, by closing the connection.
  using OnBody = std::function<bool(std::string_view)>;

  // Any HTTP status is a reply. UNAVAILABLE: no connection, or it broke; DEADLINE_EXCEEDED;
  // CANCELLED: on_body said so. `path` begins with a slash.
  absl::StatusOr<HttpReply> Get(const std::string& path, std::chrono::milliseconds timeout) const;
  absl::StatusOr<HttpReply> Post(const std::string& path, const std::string& json,
                                 std::chrono::milliseconds timeout,
                                 const OnBody& on_body = {}) const;

  const HttpUrl& url() const { return url_; }

 private:
  absl::StatusOr<HttpReply> Run(const std::string& method, const std::string& path,
                                const std::string& json, std::chrono::milliseconds timeout,
                                const OnBody& on_body) const;

  const HttpUrl url_;
  const std::string api_key_;
};

// Splits a text/event-stream into the data of its events.
class SseParser {
 public:
  // Calls `on_event` for each event that `bytes` completes; false stops, and is returned.
  bool Feed(std::string_view bytes, const std::function<bool(std::string_view data)>& on_event);

 private:
  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace lodestone

// A request of HTTP/1.1 and the limits that it is read under.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace lodestone {

struct HttpLimits {
  int64_t max_header_bytes = 16 << 10;
  int64_t max_headers = 100;
  int64_t max_target_bytes = 8 << 10;
  int64_t max_body_bytes = 16 << 20;
  int64_t max_chunks = 65536;
  int64_t max_chunk_extension_bytes = 256;
  int64_t max_connections = 10'000;
  int64_t max_output_bytes = 256 << 10;  // buffered of one response stream
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{30'000};  // plus 1 s per 64 KiB received
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds stall_timeout{60'000};  // of a client that does not read
};

struct HttpRequest {
  std::string method;
  std::string path;   // without the query
  std::string query;  // after '?'
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  TimePoint received_at;  // its last byte

  // Empty if absent. `name` in lower case.
  std::string_view Header(std::string_view name) const;
};

}  // namespace lodestone

// A request of HTTP/1.1 and the limits that it is read under.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "router/limits.h"

namespace lodestone {

// router/limits.h says what each of them is.
struct HttpLimits {
  int64_t max_connections = kMaxConnections;
  std::chrono::milliseconds idle_timeout = kIdleTimeout;
  int64_t max_target_bytes = kMaxTargetBytes;
  int64_t max_header_bytes = kMaxHeaderBytes;
  int64_t max_headers = kMaxHeaders;
  std::chrono::milliseconds header_timeout = kHeaderTimeout;
  int64_t max_body_bytes = kMaxBodyBytes;
  int64_t max_held_body_bytes = kMaxHeldBodyBytes;
  int64_t max_chunks = kMaxChunks;
  int64_t max_chunk_extension_bytes = kMaxChunkExtensionBytes;
  std::chrono::milliseconds body_timeout = kBodyTimeout;
  int64_t min_body_bytes_per_second = kMinBodyBytesPerSecond;
  std::chrono::milliseconds stall_timeout = kStallTimeout;
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

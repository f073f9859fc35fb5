#pragma once

#include <string>
#include <string_view>

#include "router/api_error.h"
#include "router/metrics.h"
#include "router/request.h"

namespace lodestone {

// The end of one client request, for the log and the metrics. Every request gets exactly one.
struct RequestEnd {
  std::string_view api;    // "chat", "completions", "grpc"
  std::string request_id;  // as the client knows it
  std::string internal_id;
  TimePoint received_at;
  Outcome outcome;         // as far as it came
  std::optional<ApiError> error{};
};

// One log line, never with a text of the client's, and the metrics of the end.
void RecordEnd(const RequestEnd& end, RouterMetrics& metrics);

}  // namespace lodestone

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "cli/http_client.h"
#include "proto/lodestone/v1/admin.pb.h"

namespace lodestone {

// A worker as its router sees it, and as it sees itself.
struct WorkerView {
  std::string role;  // "prefill", "decode"
  std::string instance_id;
  std::string address = {};                       // empty while it loads
  std::string state;                              // "ready", "draining", ...
  std::string reason = {};                        // of a state other than ready
  std::optional<v1::GetStatusReply> status = {};  // none: it does not answer, or was not asked
};

struct RefusedView {
  std::string role;
  std::string instance_id;
  std::string address;
  std::string reason;
};

// A router and its workers at one moment.
struct ClusterView {
  bool ready = false;
  std::vector<std::string> reasons;  // why not
  int64_t running = 0;
  int64_t queued = 0;
  int64_t streams = 0;
  std::vector<WorkerView> workers;
  std::vector<RefusedView> refused;
};

// From /readyz and /metrics of the router. UNAVAILABLE or DEADLINE_EXCEEDED if it does not answer,
// INVALID_ARGUMENT if the answer is not that of a router.
absl::StatusOr<ClusterView> ReadRouter(const HttpClient& http, std::chrono::milliseconds timeout);
// The body of /readyz; pure.
absl::StatusOr<ClusterView> ParseReadyz(std::string_view body);
// The value of a series without labels in the Prometheus text format; 0 if it is not there. Pure.
double MetricValue(std::string_view page, std::string_view series);
// Fills in what each worker says of itself.
void AskWorkers(ClusterView* view, std::chrono::milliseconds timeout);

}  // namespace lodestone

#include "router/config.h"

#include <absl/strings/str_cat.h>

#include "base/status_macros.h"

namespace lodestone {
namespace {

absl::Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is ", value, ", expected ", low, " to ", high));
}

}  // namespace

absl::Status RouterConfig::Validate() const {
  RETURN_IF_ERROR(CheckRange("http-port", http_port, 0, 65535));
  RETURN_IF_ERROR(CheckRange("grpc-port", grpc_port, 0, 65535));
  RETURN_IF_ERROR(CheckRange("metrics-port", metrics_port, 0, 65535));
  RETURN_IF_ERROR(CheckRange("default-max-new-tokens", default_max_new_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(CheckRange("max-running", max_running, 1, 100'000));
  RETURN_IF_ERROR(CheckRange("queue-size", queue_size, 1, 100'000));
  RETURN_IF_ERROR(CheckRange("queue-tokens", queue_tokens, 1, int64_t{1} << 40));
  RETURN_IF_ERROR(CheckRange("max-held-bodies", max_held_bodies.bytes, max_body.bytes,
                             int64_t{1} << 40));
  RETURN_IF_ERROR(CheckRange("client-stall-timeout", client_stall_timeout.count(), 10, 3'600'000));
  RETURN_IF_ERROR(CheckRange("max-connections", max_connections, 1, 1'000'000));
  RETURN_IF_ERROR(CheckRange("max-attempts", max_attempts, 1, 100));
  RETURN_IF_ERROR(CheckRange("max-body", max_body.bytes, 1024, int64_t{1} << 30));
  RETURN_IF_ERROR(CheckRange("worker-timeout", worker_timeout.count(), 100, 3'600'000));
  RETURN_IF_ERROR(CheckRange("worker-wait", worker_wait.count(), 0, 3'600'000));
  RETURN_IF_ERROR(CheckRange("handoff-timeout", handoff_timeout.count(), 10, 3'600'000));
  RETURN_IF_ERROR(CheckRange("sse-keepalive-every", sse_keepalive_every.count(), 10, 3'600'000));
  return absl::OkStatus();
}

AdmissionLimits RouterConfig::ToAdmissionLimits() const {
  return AdmissionLimits{.max_running = max_running,
                         .max_queued = queue_size,
                         .max_queued_tokens = queue_tokens,
                         .queue_timeout = queue_timeout};
}

FlowSettings RouterConfig::ToFlowSettings() const {
  FlowSettings settings;
  settings.max_attempts_without_progress = static_cast<int>(max_attempts);
  settings.replay_wait = replay_wait;
  settings.worker_wait = worker_wait;
  settings.stall_timeout = stall_timeout;
  settings.handoff_timeout = handoff_timeout;
  return settings;
}

HttpLimits RouterConfig::ToHttpLimits() const {
  HttpLimits limits;
  limits.max_body_bytes = max_body.bytes;
  limits.max_held_body_bytes = max_held_bodies.bytes;
  limits.max_connections = max_connections;
  limits.stall_timeout = client_stall_timeout;
  return limits;
}

}  // namespace lodestone

#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <absl/status/status.h>

#include "base/config.h"
#include "router/admission.h"
#include "router/http_server.h"
#include "router/limits.h"
#include "router/request_flow.h"

namespace lodestone {

// The settings of lodestone-router. Const after Validate().
struct RouterConfig {
  std::string model;
  std::string served_model_name;
  std::string model_id;
  std::string bind = "127.0.0.1";
  int64_t http_port = 8080;
  int64_t grpc_port = 8081;
  int64_t metrics_port = 9400;

  int64_t default_max_new_tokens = 4096;
  int64_t max_running = kMaxRunning;
  int64_t queue_size = kMaxQueued;
  int64_t queue_tokens = kMaxQueuedTokens;
  std::chrono::milliseconds queue_timeout{60'000};
  std::chrono::milliseconds request_timeout{600'000};
  ByteSize max_body{kMaxBodyBytes};
  ByteSize max_held_bodies{kMaxHeldBodyBytes};
  int64_t max_connections = kMaxConnections;
  std::chrono::milliseconds client_stall_timeout = kStallTimeout;

  std::chrono::milliseconds worker_timeout{1'500};
  std::chrono::milliseconds replay_wait = FlowSettings{}.replay_wait;
  std::chrono::milliseconds worker_wait = FlowSettings{}.worker_wait;
  std::chrono::milliseconds stall_timeout = FlowSettings{}.stall_timeout;
  std::chrono::milliseconds handoff_timeout = FlowSettings{}.handoff_timeout;
  int64_t max_attempts = FlowSettings{}.max_attempts_without_progress;
  std::chrono::milliseconds drain_timeout{10'000};

  std::string sse_keepalive = "chunk";
  std::chrono::milliseconds sse_keepalive_after{15'000};
  std::chrono::milliseconds sse_keepalive_every{10'000};
  bool strict_api = false;
  bool reflection = true;
  LoggingConfig logging;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(model, "model", "directory with tokenizer.json and config.json", "Model",
          FieldTraits{.required = true});
    visit(served_model_name, "served-model-name", "name in the API; empty = the directory's name",
          "Model");
    visit(model_id, "model-id",
          "id of the checkpoint, as `lodestone inspect` shows it: workers that have it may use a "
          "folder of another name",
          "Model");
    visit(bind, "bind", "address to listen on", "Network");
    visit(http_port, "http-port", "port of the OpenAI API; 0 = any free", "Network");
    visit(grpc_port, "grpc-port", "port of the gRPC API and of worker registration; 0 = any free",
          "Network");
    visit(metrics_port, "metrics-port", "port of /metrics; 0 = any free", "Network");
    visit(default_max_new_tokens, "default-max-new-tokens",
          "new tokens where a chat or gRPC request names none; cut to what fits", "Limits");
    visit(max_running, "max-running", "requests that run at once", "Limits");
    visit(queue_size, "queue-size", "requests that may wait; more are answered 429", "Limits");
    visit(queue_tokens, "queue-tokens",
          "tokens of the prompts that may wait; more are answered 429", "Limits");
    visit(queue_timeout, "queue-timeout", "longest wait for a place, then 429", "Limits");
    visit(request_timeout, "request-timeout", "longest life of a request, then 504", "Limits");
    visit(max_body, "max-body", "largest HTTP body", "Limits");
    visit(max_held_bodies, "max-held-bodies",
          "HTTP bodies that are not parsed yet, all together; more are answered 503", "Limits");
    visit(max_connections, "max-connections", "open HTTP connections; more are answered 503",
          "Limits");
    visit(client_stall_timeout, "client-stall-timeout",
          "how long a client may not read before it is cut", "Limits");
    visit(worker_timeout, "worker-timeout", "silence after which a worker counts as gone",
          "Workers");
    visit(replay_wait, "replay-wait", "wait for a worker to take over from one that died",
          "Workers");
    visit(worker_wait, "worker-wait",
          "wait of new requests for a worker after the last of its role has left; then 503",
          "Workers");
    visit(stall_timeout, "stall-timeout", "silence of a stream after which it is run again",
          "Workers");
    visit(handoff_timeout, "handoff-timeout",
          "wait for the decode worker's first token after a prefill", "Workers");
    visit(max_attempts, "max-attempts",
          "attempts of a request without a new token; a worker's death is shared by those it took, "
          "up to four",
          "Workers");
    visit(drain_timeout, "drain-timeout", "time for running requests to end at a shutdown",
          "Workers");
    visit(sse_keepalive, "sse-keepalive", "what a silent stream sends", "Streaming",
          FieldTraits{.allowed = {"chunk", "comment", "off"}});
    visit(sse_keepalive_after, "sse-keepalive-after", "silence before the first one", "Streaming");
    visit(sse_keepalive_every, "sse-keepalive-every", "time between two", "Streaming");
    visit(strict_api, "strict-api", "answer 400 to unknown request fields", "API");
    visit(reflection, "reflection", "gRPC reflection", "API");
    logging.VisitFields(visit);
  }

  // INVALID_ARGUMENT names the setting, its value and the limit.
  absl::Status Validate() const;

  AdmissionLimits ToAdmissionLimits() const;
  FlowSettings ToFlowSettings() const;
  HttpLimits ToHttpLimits() const;
};

}  // namespace lodestone

#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/worker_config.h"

namespace lodestone {

struct PrefillConfig {
  WorkerConfig worker;
  std::string chunk_tokens = "512";
  std::chrono::milliseconds link_idle{300'000};
  int64_t grpc_port = 8101;
  int64_t metrics_port = 9401;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    worker.VisitFields(visit);
    visit(chunk_tokens, "chunk-tokens",
          "prompt tokens computed in one step; whole: a prompt of --max-context at once",
          "Compute");
    visit(link_idle, "link-idle",
          "a link to a decode worker is closed when it was not used for so long", "Hand-off");
    visit(grpc_port, "grpc-port", "port of the gRPC server; 0 = any free", "Network");
    visit(metrics_port, "metrics-port", "port of /metrics; 0 = any free", "Network");
  }
};

// INVALID_ARGUMENT naming --chunk-tokens: not a number above 0, or "whole" without --max-context.
absl::StatusOr<int64_t> ChunkTokens(const PrefillConfig& config);

}  // namespace lodestone

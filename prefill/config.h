#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/worker_config.h"

namespace lodestone {

// --chunk-tokens auto. A CUDA device needs thousands of rows for its products: of a model of Flash
// dimensions an H200 computes a step of 4,096 tokens at 3.7 times the tokens a second of a step of
// 512 (docs/benchmarks.md, "A model of Flash dimensions": prompts of one step).
inline constexpr int64_t kCpuChunkTokens = 512;
inline constexpr int64_t kCudaChunkTokens = 4096;

struct PrefillConfig {
  WorkerConfig worker;
  std::string chunk_tokens = "auto";
  std::chrono::milliseconds link_idle{300'000};
  int64_t grpc_port = 8101;
  int64_t metrics_port = 9401;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    worker.VisitFields(visit);
    visit(chunk_tokens, "chunk-tokens",
          "prompt tokens computed in one step; auto: 512 on the CPU, 4,096 on a CUDA device; "
          "whole: a prompt of --max-context at once",
          "Compute");
    visit(link_idle, "link-idle",
          "a link to a decode worker is closed when it was not used for so long", "Hand-off");
    visit(grpc_port, "grpc-port", "port of the gRPC server; 0 = any free", "Network");
    visit(metrics_port, "metrics-port", "port of /metrics; 0 = any free", "Network");
  }
};

// INVALID_ARGUMENT naming --chunk-tokens: neither "auto" nor a number above 0, or "whole" without
// --max-context; or naming --device.
absl::StatusOr<int64_t> ChunkTokens(const PrefillConfig& config);

}  // namespace lodestone

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "cli/cluster_flags.h"
#include "engine/generate.h"

namespace lodestone {

// `lodestone verify`: does the cluster answer as one process does, bit for bit?
struct VerifyConfig {
  ClusterFlags cluster;
  std::string lengths = "1..40,127..131,255..260,508..516";
  int64_t batch = 1;
  int64_t new_tokens = 16;
  int64_t seed = 1;
  bool needle = false;
  std::string address;
  std::chrono::milliseconds timeout{600'000};

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(lengths, "lengths", "prompt lengths in tokens: 1..40,508..516,10500", "Prompts");
    visit(new_tokens, "new-tokens", "tokens to generate for each prompt", "Prompts");
    visit(needle, "needle", "needle prompts instead of random tokens (from 300 tokens on)",
          "Prompts");
    visit(seed, "seed", "equal seeds make equal prompts", "Prompts");
    visit(batch, "batch", "requests at once", "Cluster");
    visit(
        address, "grpc",
        "HOST:PORT of a running router's gRPC API, which must serve with the same settings; empty "
        "= start a cluster",
        "Cluster");
    visit(timeout, "timeout", "longest wait for one answer", "Cluster");
    cluster.VisitFields(visit);
  }
};

// Random tokens of the vocabulary (or needle prompts), greedy, always `new_tokens` long.
absl::StatusOr<std::vector<GenerateInput>> MakeVerifyInputs(const VerifyConfig& config,
                                                            std::span<const int64_t> lengths,
                                                            int64_t vocab_size);

// The options of an engine in one process that computes what the workers of these flags compute.
// It runs on the first of the devices. The chunk stays the default whatever the cluster's is:
// results must not depend on it.
absl::StatusOr<EngineOptions> SingleProcessOptions(const ClusterFlags& flags);

// Where two answers differ first, with both values; "" if they are equal to the last bit of every
// log-probability.
std::string DifferenceOf(const GenerateOutput& cluster, const GenerateOutput& single);

int RunVerify(int argc, const char* const* argv);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace lodestone {

struct GenerateInput {
  std::vector<int32_t> tokens;
  SamplingParams sampling;
};

struct GenerateOutput {
  std::vector<GeneratedToken> tokens;  // a stop token that ended it is the last one
  FinishReason finish = FinishReason::kNone;
};

struct GenerateOptions {
  int64_t chunk_tokens = 0;   // of one prefill step; 0: as many as a step takes
  int64_t max_sequences = 1;  // running at once, prefill and decode mixed
};

// Answers all inputs in one process, without a cluster: the yardstick that disaggregated runs are
// compared with. Inputs start in order as cache memory allows; outputs are in the order of inputs.
// Errors as Engine::NewSequence and Engine::Step; the first one ends the run.
absl::StatusOr<std::vector<GenerateOutput>> Generate(Engine& engine,
                                                     std::span<const GenerateInput> inputs,
                                                     const GenerateOptions& options);

}  // namespace lodestone

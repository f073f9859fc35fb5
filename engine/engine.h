#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sampling_params.h"
#include "engine/engine_options.h"
#include "engine/sequence.h"
#include "kvcache/cache_pool.h"
#include "kvcache/planner.h"
#include "model/forward_args.h"
#include "model/model_config.h"

namespace lodestone {

// One sequence's part of a step: its next `num_tokens` tokens are computed.
struct StepPart {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 1;
};

// A token sampled in a step: for every part that reached the end of its sequence's tokens.
struct StepResult {
  Sequence* sequence = nullptr;
  GeneratedToken token;
  FinishReason finish = FinishReason::kNone;
};

// Joins model and cache: loads a checkpoint, owns weights, cache memory, workspace and threads, and
// runs steps. Prefill workers, decode workers and single-process runs use the same one, so they
// cannot differ. Belongs to one loop thread.
class Engine {
 public:
  // Everything that can be wrong with flags, checkpoint or memory is found here. Progress goes to
  // options.progress.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  ~Engine();

  const ModelConfig& config() const;
  const EngineOptions& options() const;
  const MemoryPlan& plan() const;
  CachePool& cache();
  const Ops& ops() const;
  Stream& stream();

  // Takes slot and pages for the worst case (tokens + max new tokens still to come).
  // INVALID_ARGUMENT: over the context or the whole cache, or a token outside the vocabulary (both
  // numbers in the message); RESOURCE_EXHAUSTED: does not fit now.
  absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(std::vector<int32_t> tokens,
                                                        int32_t num_generated,
                                                        const SamplingParams& sampling);

  // One forward pass over all parts (at most options.max_batch_tokens tokens and
  // plan().max_sequences parts). A part that ends at the last known token of its sequence samples
  // the next one, which is appended to the sequence. Results do not depend on which parts share
  // the step. An error leaves the engine unusable (INTERNAL).
  absl::StatusOr<std::vector<StepResult>> Step(std::span<const StepPart> parts);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone

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
#include "kernels/ops.h"
#include "kvcache/cache_pool.h"
#include "kvcache/layout.h"
#include "kvcache/planner.h"
#include "model/format_choice.h"
#include "model/model_config.h"
#include "runtime/stream.h"

namespace lodestone {

// One sequence's part of a step: its next `num_tokens` tokens are computed.
struct StepPart {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 1;
};

// The token that another choice of the request begins with (Sequence::ForkWith).
struct ForkResult {
  GeneratedToken token;
  FinishReason finish = FinishReason::kNone;
};

// A token sampled in a step: for every part that reached the end of its sequence's tokens.
struct StepResult {
  Sequence* sequence = nullptr;
  GeneratedToken token;
  FinishReason finish = FinishReason::kNone;
  std::vector<ForkResult> forks = {};  // in the order of the seeds
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
  const FormatChoice& formats() const;
  const MemoryPlan& plan() const;
  const LayoutDescriptor& layout() const;  // what must agree with a peer
  const std::string& model_id() const;     // SHA-256 of the checkpoint's description
  CachePool& cache();
  const Ops& ops() const;
  Stream& stream();

  // INVALID_ARGUMENT, with both numbers or the field and its value, for a request that this engine
  // could never serve: empty, over the context, a token outside the vocabulary, bad sampling. The
  // context has to hold `cache_tokens`: WorstCaseTokens, or just the tokens where somebody else
  // decodes.
  absl::Status CheckRequest(std::span<const int32_t> tokens, int32_t num_generated,
                            const SamplingParams& sampling, int64_t cache_tokens) const;
  absl::Status CheckRequest(std::span<const int32_t> tokens, int32_t num_generated,
                            const SamplingParams& sampling) const;

  // A sequence whose last `num_generated` tokens were generated already, with room in the cache for
  // `cache_tokens` tokens.
  // Errors: those of CheckRequest; INVALID_ARGUMENT if the cache could never hold it;
  // RESOURCE_EXHAUSTED if it cannot now.
  absl::StatusOr<std::unique_ptr<Sequence>> NewSequence(std::vector<int32_t> tokens,
                                                        int32_t num_generated,
                                                        const SamplingParams& sampling,
                                                        int64_t cache_tokens);

  // One forward pass over all parts (at most options.max_batch_tokens tokens, at most
  // options.max_sequences parts). A part that ends at the last known token of its sequence samples
  // the next one, which is appended to the sequence. Results do not depend on which parts share
  // the step. A sequence that wants log-probabilities of its prompt takes a row of logits for each
  // token of its part, others take one: at most options.max_sequences rows in all.
  // After an error the engine must not be used again (INTERNAL).
  absl::StatusOr<std::vector<StepResult>> Step(std::span<const StepPart> parts);

 private:
  // Without the catch of a failed allocation.
  static absl::StatusOr<std::unique_ptr<Engine>> TryCreate(const EngineOptions& options);
  absl::StatusOr<std::vector<StepResult>> TryStep(std::span<const StepPart> parts);

  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Tokens that a request may come to: those it has and all it may still generate.
constexpr int64_t WorstCaseTokens(int64_t num_tokens, int32_t num_generated,
                                  const SamplingParams& sampling) {
  return num_tokens + sampling.max_new_tokens - num_generated;
}

// The compute threads that the options ask for; 0: UsableProcessors().
int NumComputeThreads(const EngineOptions& options);

// How the memory of an engine with these options would be divided; what Engine::Create uses, and
// `lodestone plan` without loading a weight. Scratch grows with the threads that `ops` is for.
absl::StatusOr<MemoryPlan> PlanEngine(const EngineOptions& options, const ModelConfig& config,
                                      const FormatChoice& formats, const Ops& ops);

}  // namespace lodestone

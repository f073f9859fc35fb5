#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/sampling_params.h"
#include "kvcache/sequence_cache.h"

namespace lodestone {

// The token stream of one request on this worker, and its cache. Owned by the worker's loop.
//
// Tokens are prompt, then generated ones. cache().length() of them are computed; a prefill step
// computes some of the rest, a decode step the last one. Sampling happens when all are computed.
class Sequence {
 public:
  // `num_generated` tokens at the end of `tokens` were generated already (replay, hand-off).
  Sequence(std::unique_ptr<SequenceCache> cache, std::vector<int32_t> tokens, int32_t num_generated,
           SamplingParams sampling)
      : cache_(std::move(cache)),
        tokens_(std::move(tokens)),
        num_generated_(num_generated),
        sampling_(std::move(sampling)) {}

  SequenceCache& cache() const { return *cache_; }
  const SamplingParams& sampling() const { return sampling_; }

  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int32_t num_generated() const { return num_generated_; }
  std::span<const int32_t> prompt() const {
    return std::span(tokens_).first(tokens_.size() - static_cast<size_t>(num_generated_));
  }
  std::span<const int32_t> generated() const {
    return std::span(tokens_).last(static_cast<size_t>(num_generated_));
  }
  // Tokens whose cache rows are not computed yet.
  int64_t num_pending() const { return num_tokens() - cache_->length(); }

  // Further choices that begin as copies of this sequence: the next token is also sampled with each
  // of these seeds instead of its own (StepResult::forks).
  void ForkWith(std::vector<uint64_t> seeds) { fork_seeds_ = std::move(seeds); }
  std::vector<uint64_t> TakeForkSeeds() { return std::exchange(fork_seeds_, {}); }

  // Log-probabilities of the prompt, sampling().top_logprobs alternatives each, which steps then
  // append. REQUIRES: nothing is computed or generated yet.
  void WantPromptLogprobs() { prompt_logprobs_.emplace(); }
  bool wants_prompt_logprobs() const { return prompt_logprobs_.has_value(); }
  PromptLogprobs& prompt_logprobs() { return *prompt_logprobs_; }

  void AppendGenerated(int32_t token) {
    tokens_.push_back(token);
    ++num_generated_;
  }

 private:
  std::unique_ptr<SequenceCache> cache_;
  std::vector<int32_t> tokens_;
  int32_t num_generated_;
  const SamplingParams sampling_;
  std::vector<uint64_t> fork_seeds_;
  std::optional<PromptLogprobs> prompt_logprobs_;
};

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sampling_params.h"

namespace lodestone {

// What the choice of a token may depend on beside the logits.
struct SamplingHistory {
  std::span<const int32_t> prompt;
  std::span<const int32_t> generated;  // its size is the index of the token to choose
  std::span<const int32_t> eos_ids;
};

// INVALID_ARGUMENT naming the field and its value for parameters that no choice can be made with,
// and for token ids outside [0, vocab_size).
absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab_size);

// Chooses the next token. In this order: logit_bias; repetition_penalty (prompt and generated),
// presence and frequency penalties (generated); stop tokens are excluded below min_new_tokens;
// temperature 0 takes the largest logit (ties to the lower id); otherwise softmax at `temperature`,
// then top_k, top_p, min_p (each on what the former left, ties kept by lower id first) and one
// draw with RandomUniform(seed, index). Log-probabilities, if asked for, are of the softmax of the
// logits as they came, before any of it. `logits` [V] is changed. INTERNAL if a logit is
// not finite. Where everything is excluded, token 0 is chosen.
absl::StatusOr<GeneratedToken> SampleToken(std::span<float> logits, const SamplingParams& params,
                                           const SamplingHistory& history);

// Appends the log-probability of `token`, which stands where `logits` [V] were computed for, with
// the `num_top` most likely tokens. INTERNAL if a logit is not finite.
absl::Status AppendPromptLogprob(std::span<const float> logits, int32_t token, int num_top,
                                 PromptLogprobs& logprobs);

// Whether `token`, the `num_generated`-th generated one, ends its request.
FinishReason FinishAfter(int32_t token, int32_t num_generated, const SamplingParams& params,
                         std::span<const int32_t> eos_ids);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lodestone {

// How the next token is chosen; field meanings as in proto/lodestone/v1/inference.proto.
struct SamplingParams {
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  int32_t top_k = 0;  // 0: off
  double min_p = 0;
  uint64_t seed = 0;  // randomness = f(seed, index of the generated token)
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;
  int32_t max_new_tokens = 1;  // from the original prompt, replays included
  int32_t min_new_tokens = 0;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// One generated token.
struct GeneratedToken {
  int32_t id = 0;
  int32_t index = 0;  // 0 is the first generated token of the request, replays included
  float logprob = 0;  // 0 unless asked for
  std::vector<TokenLogprob> top_logprobs = {};
  friend bool operator==(const GeneratedToken&, const GeneratedToken&) = default;
};

// Log-probabilities of a prompt's tokens from the second on, each given those before it.
struct PromptLogprobs {
  std::vector<float> logprobs = {};    // [P - 1]
  std::vector<TokenLogprob> top = {};  // [P - 1, alternatives], most likely first
  friend bool operator==(const PromptLogprobs&, const PromptLogprobs&) = default;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

}  // namespace lodestone

#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/logit_scan.h"
#include "engine/random.h"

namespace lodestone {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

absl::Status CheckRange(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " is " + std::to_string(value) +
                                    ", must be in [" + std::to_string(low) + ", " +
                                    std::to_string(high) + "]");
}

absl::Status CheckTokenId(const char* name, int64_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " has token id " + std::to_string(id) +
                                    ", the vocabulary has " + std::to_string(vocab_size) +
                                    " tokens");
}

bool IsStop(int32_t token, const SamplingParams& params, std::span<const int32_t> eos_ids) {
  if (!params.ignore_eos && std::ranges::find(eos_ids, token) != eos_ids.end()) return true;
  return std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end();
}

void ApplyPenalties(std::span<float> logits, const SamplingParams& params,
                    const SamplingHistory& history) {
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  // Most requests have no penalty; counting the answer for every token of it would be quadratic.
  if (params.repetition_penalty == 1 && params.presence_penalty == 0 &&
      params.frequency_penalty == 0) {
    return;
  }
  std::map<int32_t, int> counts;
  for (int32_t token : history.generated) ++counts[token];
  if (params.repetition_penalty != 1) {
    std::set<int32_t> seen(history.prompt.begin(), history.prompt.end());
    for (const auto& [token, count] : counts) seen.insert(token);
    const float penalty = static_cast<float>(params.repetition_penalty);
    for (int32_t token : seen) {
      float& logit = logits[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  for (const auto& [token, count] : counts) {
    logits[static_cast<size_t>(token)] -=
        static_cast<float>(params.presence_penalty + params.frequency_penalty * count);
  }
}

void ExcludeStopTokens(std::span<float> logits, const SamplingParams& params,
                       std::span<const int32_t> eos_ids) {
  for (int32_t token : eos_ids) logits[static_cast<size_t>(token)] = kExcluded;
  for (int32_t token : params.stop_token_ids) logits[static_cast<size_t>(token)] = kExcluded;
}

// Ties go to the lower id.
int32_t Largest(std::span<const float> logits) {
  return static_cast<int32_t>(IndexOfLargest(logits));
}

struct Candidate {
  int32_t token;
  double probability;  // not normalised: exp((logit - largest) / temperature)
};

// Tokens e^-40 times as probable as the most probable one, and less, are never drawn: all of a
// vocabulary together could not change a probability by 1e-12. Most tokens of a trained model are.
constexpr double kNegligibleExponent = -40;

bool MoreProbable(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

// Candidates of which as many are in order, most probable first and ties by lower id, as somebody
// looked at: sorting a whole vocabulary for one token costs more than a step of a small model.
class Candidates {
 public:
  // In ascending order of tokens.
  explicit Candidates(std::vector<Candidate> all) : all_(std::move(all)) {}

  size_t size() const { return all_.size(); }
  const Candidate& operator[](size_t place) {
    while (place >= num_sorted_) SortMore();
    return all_[place];
  }
  void Keep(size_t count) {
    while (count > num_sorted_) SortMore();
    all_.resize(count);
    num_sorted_ = count;
  }
  // Always in the same order of additions.
  double Total() const {
    double total = 0;
    for (const Candidate& candidate : all_) total += candidate.probability;
    return total;
  }

 private:
  void SortMore() {
    const auto begin = all_.begin() + static_cast<std::ptrdiff_t>(num_sorted_);
    num_sorted_ = std::min(all_.size(), std::max<size_t>(256, 8 * num_sorted_));
    const auto end = all_.begin() + static_cast<std::ptrdiff_t>(num_sorted_);
    if (end != all_.end()) std::nth_element(begin, end, all_.end(), MoreProbable);
    std::sort(begin, end, MoreProbable);
  }

  std::vector<Candidate> all_;
  size_t num_sorted_ = 0;
};

Candidates AllCandidates(std::span<const float> logits, double temperature) {
  const double largest = logits[IndexOfLargest(logits)];
  // Every token may be excluded (all of the vocabulary are stop tokens below min_new_tokens).
  if (!std::isfinite(largest)) return Candidates({{Largest(logits), 1.0}});
  std::vector<Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double exponent = (static_cast<double>(logits[i]) - largest) / temperature;
    if (exponent < kNegligibleExponent) continue;
    all.push_back({static_cast<int32_t>(i), std::exp(exponent)});
  }
  return Candidates(std::move(all));
}

void Filter(Candidates& candidates, const SamplingParams& params) {
  if (params.top_k > 0 && candidates.size() > static_cast<size_t>(params.top_k)) {
    candidates.Keep(static_cast<size_t>(params.top_k));
  }
  if (params.top_p > 0 && params.top_p < 1) {
    const double wanted = params.top_p * candidates.Total();
    double sum = 0;
    size_t count = 0;
    while (count < candidates.size() && sum < wanted) sum += candidates[count++].probability;
    candidates.Keep(std::max<size_t>(count, 1));
  }
  if (params.min_p > 0) {
    const double floor = params.min_p * candidates[0].probability;
    size_t count = 1;
    while (count < candidates.size() && candidates[count].probability >= floor) ++count;
    candidates.Keep(count);
  }
}

int32_t Draw(Candidates& candidates, double uniform) {
  double rest = uniform * candidates.Total();
  for (size_t i = 0; i < candidates.size(); ++i) {
    rest -= candidates[i].probability;
    if (rest < 0) return candidates[i].token;
  }
  return candidates[candidates.size() - 1].token;
}

// log of the sum of exp(logits), in double.
double LogSumExp(std::span<const float> logits) {
  const double largest = logits[IndexOfLargest(logits)];
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, double log_sum, int count) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const size_t kept = std::min(order.size(), static_cast<size_t>(count));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::vector<TokenLogprob> top;
  for (size_t i = 0; i < kept; ++i) {
    const double logit = logits[static_cast<size_t>(order[i])];
    top.push_back({order[i], static_cast<float>(logit - log_sum)});
  }
  return top;
}

absl::Status CheckFinite(std::span<const float> logits) {
  if (AllFinite(logits)) return absl::OkStatus();
  for (float logit : logits) {
    if (!std::isfinite(logit)) {
      return absl::InternalError("the model computed a logit of " + std::to_string(logit));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab_size) {
  RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0, 100));
  RETURN_IF_ERROR(CheckRange("top_p", params.top_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("top_k", params.top_k, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("max_new_tokens", params.max_new_tokens, 1, 1e9));
  RETURN_IF_ERROR(CheckRange("min_new_tokens", params.min_new_tokens, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("top_logprobs", params.top_logprobs, 0, 20));
  RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty, 0.01, 100));
  RETURN_IF_ERROR(CheckRange("presence_penalty", params.presence_penalty, -2, 2));
  RETURN_IF_ERROR(CheckRange("frequency_penalty", params.frequency_penalty, -2, 2));
  for (int32_t id : params.stop_token_ids) {
    RETURN_IF_ERROR(CheckTokenId("stop_token_ids", id, vocab_size));
  }
  for (const auto& [id, bias] : params.logit_bias) {
    RETURN_IF_ERROR(CheckTokenId("logit_bias", id, vocab_size));
    RETURN_IF_ERROR(CheckRange("logit_bias", bias, -100, 100));
  }
  return absl::OkStatus();
}

absl::StatusOr<GeneratedToken> SampleToken(std::span<float> logits, const SamplingParams& params,
                                           const SamplingHistory& history) {
  RETURN_IF_ERROR(CheckFinite(logits));
  GeneratedToken token{.index = static_cast<int32_t>(history.generated.size())};
  double log_sum = 0;
  std::vector<float> raw;
  if (params.logprobs) {
    log_sum = LogSumExp(logits);
    token.top_logprobs = TopLogprobs(logits, log_sum, params.top_logprobs);
    raw.assign(logits.begin(), logits.end());
  }
  ApplyPenalties(logits, params, history);
  if (token.index < params.min_new_tokens) ExcludeStopTokens(logits, params, history.eos_ids);
  if (params.temperature == 0) {
    token.id = Largest(logits);
  } else {
    Candidates candidates = AllCandidates(logits, params.temperature);
    Filter(candidates, params);
    token.id = Draw(candidates, RandomUniform(params.seed, static_cast<uint64_t>(token.index)));
  }
  if (params.logprobs) {
    token.logprob = static_cast<float>(raw[static_cast<size_t>(token.id)] - log_sum);
  }
  return token;
}

absl::Status AppendPromptLogprob(std::span<const float> logits, int32_t token, int num_top,
                                 PromptLogprobs& logprobs) {
  RETURN_IF_ERROR(CheckFinite(logits));
  const double log_sum = LogSumExp(logits);
  logprobs.logprobs.push_back(static_cast<float>(logits[static_cast<size_t>(token)] - log_sum));
  const std::vector<TokenLogprob> top = TopLogprobs(logits, log_sum, num_top);
  logprobs.top.insert(logprobs.top.end(), top.begin(), top.end());
  return absl::OkStatus();
}

FinishReason FinishAfter(int32_t token, int32_t num_generated, const SamplingParams& params,
                         std::span<const int32_t> eos_ids) {
  if (IsStop(token, params, eos_ids)) return FinishReason::kStop;
  if (num_generated >= params.max_new_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

}  // namespace lodestone

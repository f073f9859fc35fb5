#include "tests/testing/pass_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"

namespace lodestone {
namespace {

// |got - want| / |want| of each token, ascending.
std::vector<double> TokenErrors(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want,
                                size_t num_tokens) {
  std::vector<double> errors;
  const size_t width = want.size() / num_tokens;
  for (size_t token = 0; token < num_tokens; ++token) {
    double difference = 0, size = 0;
    for (size_t i = token * width; i < (token + 1) * width; ++i) {
      const auto g = static_cast<double>(Bf16ToFloat(got[i]));
      const auto w = static_cast<double>(Bf16ToFloat(want[i]));
      difference += (g - w) * (g - w);
      size += w * w;
    }
    errors.push_back(std::sqrt(difference / size));
  }
  std::ranges::sort(errors);
  return errors;
}

// What an op may differ by (OpDifference) from the same op of another backend.
struct OpTolerance {
  double row = 0, element = 0;
};

OpTolerance ToleranceOf(const std::string& op) {
  constexpr double kUlp = 1.0 / 128;                              // of bf16, relative to a value
  if (op == "EmbedTokens" || op == "StoreWindow") return {0, 0};  // copies
  // Sums in fp32, stored as they are.
  if (op.ends_with(" to f32") || op == "IndexTopK" || op == "MoeRoute") return {1e-5, 1e-4};
  // A value that is rounded to a code, inside the op or at its end, and falls the other way moves
  // by a step: 1/8 of an e4m3 value, 1/2 of an e2m1 value; rows have few of them.
  if (op == "MoeExperts with codes") return {0.02, 0.2};
  if (op.ends_with(" with codes") && !op.starts_with("Linear")) return {0.15, 1.5};
  // One rounding, of sums that are nearly equal.
  if (op.starts_with("Linear") || op == "HcPost" || op == "RmsNorm") return {kUlp, 1e-4};
  // Roundings inside the op, then one at its end.
  return {kUlp, 1.0 / 16};
}

// Sums in fp32 as shares of the largest score: equal inputs choose alike beyond this.
constexpr double kChoiceRounding = 1e-5;

class Findings {
 public:
  explicit Findings(std::string where) : where_(std::move(where)) {}

  void Expect(bool good, const std::string& what, double is, double allowed) {
    if (good) return;
    found_.push_back(where_ + what + " is " + std::to_string(is) + ", allowed " +
                     std::to_string(allowed));
  }
  void AtMost(const std::string& what, double is, double allowed) {
    Expect(is <= allowed, what, is, allowed);
  }
  void AppendTo(std::vector<std::string>& all) const {
    all.insert(all.end(), found_.begin(), found_.end());
  }

 private:
  const std::string where_;
  std::vector<std::string> found_;
};

void CompareStreams(size_t layer, const std::vector<double>& errors, const PassTolerance& tolerance,
                    Findings& findings) {
  const double median = errors[errors.size() / 2];
  std::printf("  layer %zu: relative error of a token: median %.5f, 90 %% %.5f, worst %.5f\n",
              layer, median, errors[errors.size() * 9 / 10], errors.back());
  findings.AtMost("the median token's error", median,
                  layer == 0 ? tolerance.first : tolerance.later);
  findings.AtMost("the worst token's error", errors.back(), tolerance.any);
}

// How many of so many tokens may choose otherwise, each with the probability `share`. Of few tokens
// the number scatters: two standard deviations more.
double AllowedOthers(int64_t tokens, double share) {
  constexpr int64_t kFewTokens = 8;
  const double expected = share * static_cast<double>(tokens);
  return expected + 1 + (tokens <= kFewTokens ? 2 * std::sqrt(expected * (1 - share)) : 0);
}

void CompareChoices(const std::string& what, const Choice& got, const Choice& want, double margin,
                    double share, Findings& findings) {
  OpDifference difference;
  const int64_t tokens = std::ssize(want.chosen) / want.count;
  for (int64_t t = 0; t < tokens; ++t) {
    CompareChoice(got.ChosenBy(t), want.ChosenBy(t), want.ScoresOf(t), difference);
  }
  if (difference.different_choices == 0) return;
  std::printf(
      "    %lld of %lld tokens choose other %s, which differ by %.5f of the largest score\n",
      static_cast<long long>(difference.different_choices), static_cast<long long>(tokens),
      what.c_str(), difference.worst_choice);
  findings.AtMost("the exchanged " + what + "' difference", difference.worst_choice, margin);
  findings.AtMost("the number of tokens with other " + what,
                  static_cast<double>(difference.different_choices),
                  AllowedOthers(tokens, share));
}

}  // namespace

PairedPass RunPaired(PairedOps& ops, const FormatChoice& formats, PairedOps::GoesOn which,
                     const PassChoices* choices, const std::vector<int32_t>& prompt,
                     int num_threads) {
  CHECK(formats.activation() == DType::kBf16);
  PairedPass pass;
  ForwardProbe probe;
  probe.on_layer = [&pass](int, const TensorView& streams) {
    const uint16_t* values = streams.as<uint16_t>();
    pass.layers.emplace_back(values, values + streams.num_elements());
  };
  ops.SetPass(which, choices);
  const int64_t length = std::ssize(prompt);
  ModelRunner runner(
      ops.model(), ops, formats,
      {.num_seqs = 1, .max_context = length, .max_tokens = length, .num_threads = num_threads});
  runner.Prefill(prompt, 0, 1, &probe);
  pass.choices = ops.TakeChoices();
  return pass;
}

std::vector<std::string> PassDifferences(const ModelConfig& config, const PairedPass& got,
                                         const PairedPass& want, const PassTolerance& tolerance) {
  CHECK_EQ(got.layers.size(), want.layers.size());
  std::vector<std::string> all;
  size_t indexed = 0;
  for (size_t layer = 0; layer < want.layers.size(); ++layer) {
    const Choice& experts = want.choices.experts[layer];
    const size_t num_tokens = experts.chosen.size() / static_cast<size_t>(experts.count);
    Findings findings(std::to_string(num_tokens) + " tokens, layer " + std::to_string(layer) +
                      ": ");
    CompareStreams(layer, TokenErrors(got.layers[layer], want.layers[layer], num_tokens), tolerance,
                   findings);
    CompareChoices("experts", got.choices.experts[layer], experts, tolerance.expert_margin,
                   tolerance.other_experts, findings);
    if (config.is_indexed(static_cast<int64_t>(layer))) {
      CompareChoices("entries", got.choices.entries[indexed], want.choices.entries[indexed],
                     tolerance.entry_margin, tolerance.other_entries, findings);
      ++indexed;
    }
    findings.AppendTo(all);
  }
  return all;
}

std::vector<std::string> OpFaults(const std::map<std::string, OpDifference>& differences) {
  std::vector<std::string> all;
  for (const auto& [name, d] : differences) {
    std::printf("  %-24s %8lld of %8lld rows differ: a row by %.2e, an element by %.2e",
                name.c_str(), static_cast<long long>(d.different_rows),
                static_cast<long long>(d.rows), d.worst_row, d.worst_element);
    if (d.different_choices > 0) {
      std::printf("; %lld other choices, by %.1e", static_cast<long long>(d.different_choices),
                  d.worst_choice);
    }
    std::printf("\n");
    const OpTolerance tolerance = ToleranceOf(name);
    Findings findings(name + ": ");
    findings.AtMost("the worst row's error", d.worst_row, tolerance.row);
    findings.AtMost("the worst element's error", d.worst_element, tolerance.element);
    findings.AtMost("the exchanged choices' difference", d.worst_choice, kChoiceRounding);
    findings.AppendTo(all);
  }
  return all;
}

std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  uint64_t state = 77;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

}  // namespace lodestone

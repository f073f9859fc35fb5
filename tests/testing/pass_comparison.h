#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/format_choice.h"
#include "tests/testing/op_difference.h"
#include "tests/testing/paired_ops.h"

// Whole passes of two backends. Sums are added in other orders, so values fall either way, and a
// pass amplifies that wherever it chooses: a token whose two best experts are nearly equal goes to
// another one and comes out another. So ops are compared one by one at the values of a pass, and
// passes with the choices of one imposed on the other, every token then; choices apart, which may
// differ where what they choose from is nearly equal, and nowhere else.
namespace lodestone {

struct PairedPass {
  std::vector<std::vector<uint16_t>> layers;  // bf16 streams [T, M * D] after every layer
  PassChoices choices;
};

// One prompt, whole. `choices`: PairedOps::SetPass. REQUIRES: bf16 activations.
PairedPass RunPaired(PairedOps& ops, const FormatChoice& formats, PairedOps::GoesOn which,
                     const PassChoices* choices, const std::vector<int32_t>& prompt,
                     int num_threads);

struct PassTolerance {
  // Relative errors of the streams of a token: of the median token after the first layer and after
  // each later one, and of any token.
  double first = 0, later = 0, any = 0;
  // Between what two choices of one token exchange, as a share of its largest score.
  double expert_margin = 0, entry_margin = 0;
  // Of the tokens of a layer, that may choose otherwise; one always, and of 8 or fewer some more.
  double other_experts = 0, other_entries = 0;
};

// Of the measured errors about the double, at random weights, which have many near ties.
inline constexpr PassTolerance kPlainTolerance{.first = 0.01,
                                               .later = 0.02,
                                               .any = 0.04,
                                               .expert_margin = 0.02,
                                               .entry_margin = 0.05,
                                               .other_experts = 0.2,
                                               .other_entries = 0.4};
// Inputs of products are rounded to FP8: a value that falls the other way moves by up to 1/8, and
// such flips feed the next ones; keys and queries of the index to FP4, by up to 1/2.
inline constexpr PassTolerance kReferenceTolerance{.first = 0.04,
                                                   .later = 0.12,
                                                   .any = 0.2,
                                                   .expert_margin = 0.06,
                                                   .entry_margin = 0.5,
                                                   .other_experts = 0.6,
                                                   .other_entries = 0.6};

// What is wrong with `got`; prints the figures. `got` is a pass with the choices of `want` imposed.
std::vector<std::string> PassDifferences(const ModelConfig& config, const PairedPass& got,
                                         const PairedPass& want, const PassTolerance& tolerance);

// Which ops differ by more than the order of their sums and the roundings inside them explain;
// prints the figures.
std::vector<std::string> OpFaults(const std::map<std::string, OpDifference>& differences);

// Random token ids that follow from the length.
std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size);

}  // namespace lodestone

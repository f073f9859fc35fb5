#pragma once

#include <string>

namespace lodestone {

// A model of 4 layers (ratios 0, 4, 128, 4; hash and bias routing) of any shape, random weights.
struct SyntheticShape {
  const char* name;
  int hidden, heads, q_rank, groups, o_rank, index_heads, index_top_k, experts, chosen, width;
  bool quantised;  // FP8 matrices and FP4 experts, else bf16
};

// The smallest that a config.json may describe.
inline constexpr SyntheticShape kSmallestShape = {"Smallest", 128, 4, 32, 2,  32,
                                                  4,          16,  4, 1,  32, false};
inline constexpr SyntheticShape kOddShape = {"Odd", 672, 20, 96, 4, 160, 12, 48, 12, 3, 96, false};
inline constexpr SyntheticShape kOddQuantisedShape = {
    "OddQuantised", 672, 20, 96, 4, 160, 12, 48, 12, 3, 96, true};

// Writes its checkpoint into a new folder. Any error ends the process.
void WriteSyntheticModel(const SyntheticShape& shape, const std::string& directory);

}  // namespace lodestone

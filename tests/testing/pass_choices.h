#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/tensor.h"

namespace lodestone {

// What one call of MoeRoute or IndexTopK chose, and the scores that the base forms of its inputs.
struct Choice {
  std::span<const int32_t> ChosenBy(int64_t token) const {
    return std::span(chosen).subspan(static_cast<size_t>(token * count),
                                     static_cast<size_t>(count));
  }
  std::span<const float> ScoresOf(int64_t token) const {
    if (scores.empty()) return {};
    return std::span(scores).subspan(static_cast<size_t>(token * candidates),
                                     static_cast<size_t>(candidates));
  }

  int64_t count = 0;            // per token
  int64_t candidates = 0;       // scores per token
  std::vector<int32_t> chosen;  // [T, count]  ascending, -1 behind
  std::vector<float> weights;   // [T, count]  of experts
  std::vector<float> scores;    // [T, candidates]  0 for entries not visible; empty in hash layers
};
struct PassChoices {
  std::vector<Choice> experts;  // by layer
  std::vector<Choice> entries;  // by layer of ratio 4
};

// Appends `choice` with what was chosen to `kept`, and puts what `imposed` has at that place into
// the rows of tokens that chose otherwise. `weights` is empty() for entries.
void KeepChoice(const TensorView& chosen, const TensorView& weights,
                const std::vector<Choice>* imposed, Choice choice, std::vector<Choice>& kept);

}  // namespace lodestone

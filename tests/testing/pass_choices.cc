#include "tests/testing/pass_choices.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lodestone {

void KeepChoice(const TensorView& chosen, const TensorView& weights,
                const std::vector<Choice>* imposed, Choice choice, std::vector<Choice>& kept) {
  choice.chosen.resize(static_cast<size_t>(chosen.num_elements()));
  std::memcpy(choice.chosen.data(), chosen.data, static_cast<size_t>(chosen.num_bytes()));
  if (!weights.empty()) {
    choice.weights.resize(choice.chosen.size());
    std::memcpy(choice.weights.data(), weights.data, static_cast<size_t>(weights.num_bytes()));
  }
  if (imposed != nullptr) {
    const Choice& other = imposed->at(kept.size());
    for (int64_t t = 0; t < chosen.shape[0]; ++t) {
      if (std::ranges::equal(choice.ChosenBy(t), other.ChosenBy(t))) continue;
      std::ranges::copy(other.ChosenBy(t), chosen.row<int32_t>(t));
      if (weights.empty()) continue;
      const auto row = std::span(other.weights).subspan(static_cast<size_t>(t * other.count));
      std::copy_n(row.begin(), other.count, weights.row<float>(t));
    }
  }
  kept.push_back(std::move(choice));
}

}  // namespace lodestone

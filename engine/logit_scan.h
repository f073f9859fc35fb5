#pragma once

#include <cstddef>
#include <span>

namespace lodestone {

// Passes over the logits of a row [V], which every token pays for: a vocabulary has 129,280 of
// them.

bool AllFinite(std::span<const float> logits);

// The first of the largest. REQUIRES: not empty, no NaN.
size_t IndexOfLargest(std::span<const float> logits);

}  // namespace lodestone

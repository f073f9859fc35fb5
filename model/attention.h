#pragma once

#include <cstdint>

#include "model/forward_pass.h"

namespace lodestone {

// The attention block of one layer (docs/model.md 8): act.x to act.y, and the layer's caches grow
// by the tokens of the batch.
void RunAttention(const ForwardPass& pass, int64_t layer);

}  // namespace lodestone

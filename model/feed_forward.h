#pragma once

#include <cstdint>

#include "model/forward_pass.h"

namespace lodestone {

// The mixture-of-experts block of one layer (docs/model.md 9): act.x to act.y.
void RunFeedForward(const ForwardPass& pass, int64_t layer);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"

// Engines over whole checkpoints on cuda:0, and their layers against the CPU's.
namespace lodestone {

// Any error is a failure of the test, which ends then. Prints how long it took.
std::unique_ptr<Engine> MakeTimedEngine(const EngineOptions& options);

// Follows from the length.
std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size);

// Between host and device, either way.
void CopyBytes(void* to, const void* from, int64_t num_bytes);

// Relative errors of the residual streams of a token: of the median token after the first layer and
// after each later one, and of any token.
struct LayerTolerance {
  double first, later, any;
};

// Runs random prompts of these lengths on the device of `options` and on the CPU, and expects the
// same streams after every layer.
void ExpectLayersMatchTheCpu(const EngineOptions& options, const std::vector<int64_t>& lengths,
                             const LayerTolerance& tolerance);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/pass_comparison.h"

// Engines over whole checkpoints on cuda:0, and their layers against the CPU's.
namespace lodestone {

// Any error is a failure of the test, which ends then. Prints how long it took.
std::unique_ptr<Engine> MakeTimedEngine(const EngineOptions& options);

// Between host and device, either way.
void CopyBytes(void* to, const void* from, int64_t num_bytes);

// Runs random prompts of these lengths and expects: of every op, on the inputs that a pass of the
// CPU and one of cuda:0 give it, the CPU's result; of every layer, with the CPU's choices imposed,
// the CPU's streams; other choices only between near ties; and of the engine on the device of
// `options` the bits that its ops give one by one. Together: no op of the engine is wrong, whatever
// a flipped choice or a flipped code makes of a token further on.
void ExpectLayersMatchTheCpu(const EngineOptions& options, const std::vector<int64_t>& lengths,
                             const PassTolerance& tolerance);

}  // namespace lodestone

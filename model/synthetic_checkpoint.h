#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/thread_pool.h"
#include "model/checkpoint_writer.h"
#include "model/weights.h"

namespace lodestone {

// Fills `writer` with random weights that are scaled so that activations neither die nor explode:
// a matrix has a standard deviation of 1 / sqrt(inputs), norm weights are near 1, residual mixes
// near the identity, expert tables name different experts for each token. Codes of quantised
// matrices are drawn as such, never rounded from numbers; their scales vary from tile to tile, so
// that a wrong layout shows. Every byte follows from the seed and its place, whatever the number of
// threads. Memory: a few MiB. Errors of the writer. Does not call Finish.
absl::Status WriteSyntheticTensors(uint64_t seed, CheckpointWriter& writer, ThreadPool& pool,
                                   const LoadProgress& progress);

}  // namespace lodestone

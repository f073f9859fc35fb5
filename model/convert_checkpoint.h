#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/checkpoint_writer.h"
#include "model/weights.h"

// A checkpoint with the same weights in another form (docs/model.md 3.3).
namespace lodestone {

// The formats of the matrices, as ModelConfig has them.
struct WeightForm {
  WeightFormat dense = WeightFormat::kBf16;
  WeightFormat expert = WeightFormat::kBf16;
};

// "official": FP8, with FP4 experts; "fp8": both FP8; "fp4": FP4 experts, the rest BF16; "bf16".
// INVALID_ARGUMENT for another name.
absl::StatusOr<WeightForm> ParseWeightForm(std::string_view name);

// The config.json of a checkpoint in this form: `text` with quantization_config and expert_dtype as
// the official config has them, everything else as it is.
absl::StatusOr<std::string> ConfigInForm(std::string_view text, const WeightForm& form);

// Fills `writer`, whose config differs from that of `source` in formats only. A matrix that keeps
// its format is copied byte for byte; one that gets codes gets, for each tile or group, the
// smallest power-of-two scale that brings its largest weight into range, and nearest codes. Never
// more than some 128-row bands of a matrix are in memory. INVALID_ARGUMENT, naming the tensor, for
// a weight that is not finite; errors of the writer. Does not call Finish.
absl::Status ConvertCheckpoint(const Checkpoint& source, CheckpointWriter& writer, ThreadPool& pool,
                               const LoadProgress& progress);

}  // namespace lodestone

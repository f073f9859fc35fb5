#pragma once

#include <cstdint>
#include <string>

#include <absl/status/status.h>

#include "base/thread_pool.h"
#include "cli/progress.h"
#include "model/checkpoint_writer.h"
#include "model/weights.h"

// What the commands that write checkpoints share.
namespace lodestone {

// INVALID_ARGUMENT for an impossible number; 0 stands for one thread per processor.
absl::StatusOr<int> WriterThreads(int64_t threads);

// Redraws "writing DIR: 1.2 GiB of 13.7 GiB".
LoadProgress WriteProgress(Progress& progress, const std::string& directory);

// Copies the files of `source` that belong to no checkpoint's weights into `target`: everything but
// config.json, *.safetensors and their index. Of subfolders only `encoding`, the vendor's texts.
absl::Status CopySideFiles(const std::string& source, const std::string& target);

// Finishes the folder. Returns "DIR: 255 tensors, 6.1 MiB; model id 4c1f...", after opening it as a
// worker would.
absl::StatusOr<std::string> FinishCheckpoint(CheckpointWriter& writer,
                                             const std::string& directory);

}  // namespace lodestone

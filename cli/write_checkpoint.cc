#include "cli/write_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/processors.h"
#include "base/status_macros.h"
#include "model/checkpoint.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxThreads = 1024;

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

bool IsWeightFile(const fs::path& path) {
  return path.extension() == ".safetensors" || path.filename() == "config.json" ||
         path.filename() == "model.safetensors.index.json";
}

}  // namespace

absl::StatusOr<int> WriterThreads(int64_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    return absl::InvalidArgumentError("--threads is " + std::to_string(threads) + ", 0 to " +
                                      std::to_string(kMaxThreads) + " are possible");
  }
  if (threads > 0) return static_cast<int>(threads);
  return static_cast<int>(std::min<int64_t>(UsableProcessors(), kMaxThreads));
}

LoadProgress WriteProgress(Progress& progress, const std::string& directory) {
  return [&progress, directory](int64_t done, int64_t total) {
    progress.Update("writing " + directory + ": " + Bytes(done) + " of " + Bytes(total));
  };
}

absl::Status CopySideFiles(const std::string& source, const std::string& target) {
  std::error_code error;
  const fs::path texts = fs::path(source) / "encoding";
  if (fs::is_directory(texts, error)) {
    fs::create_directory(fs::path(target) / "encoding", error);
    RETURN_IF_ERROR(CopySideFiles(texts.string(), target + "/encoding"));
  }
  error.clear();
  for (const fs::directory_entry& entry : fs::directory_iterator(source, error)) {
    if (!entry.is_regular_file(error) || IsWeightFile(entry.path())) continue;
    fs::copy_file(entry.path(), fs::path(target) / entry.path().filename(), error);
    if (error) {
      return absl::UnavailableError(entry.path().string() + ": cannot be copied to " + target +
                                    ": " + error.message());
    }
  }
  if (error) return absl::NotFoundError(source + ": " + error.message());
  return absl::OkStatus();
}

absl::StatusOr<std::string> FinishCheckpoint(CheckpointWriter& writer,
                                             const std::string& directory) {
  RETURN_IF_ERROR(writer.Finish());
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory, {}));
  return directory + ": " + std::to_string(writer.order().size()) + " tensors, " +
         Bytes(writer.total_bytes()) + "; model id " + checkpoint.model_id();
}

}  // namespace lodestone

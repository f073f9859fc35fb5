#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/weight_map.h"

namespace lodestone {

struct CheckpointOptions {
  std::string overlay;          // safetensors file whose tensors replace those of the checkpoint
  bool verify_weights = false;  // the model id covers every byte of every file, not headers only
};

// A checkpoint folder in the official layout: config.json beside model.safetensors, or beside
// shards and model.safetensors.index.json. The files stay mapped while this lives. Once opened, the
// tensors are exactly those that its config asks for, with the right shapes and types.
// Thread-safe (const).
class Checkpoint {
 public:
  // NOT_FOUND for a missing file; INVALID_ARGUMENT naming the file and the tensor for everything
  // that does not match: truncated, missing, surplus, misshaped, of another type, an index that
  // contradicts its shards. Tensors of the MTP block (`mtp.*`) are skipped with one log line.
  // RESOURCE_EXHAUSTED without memory for it.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory,
                                         const CheckpointOptions& options);

  const ModelConfig& config() const { return config_; }
  // SHA-256 as 64 lower-case hex digits over config, index, shard headers and overlay (whole), or
  // over every byte with `verify_weights`. Two workers with equal ids hold the same model.
  const std::string& model_id() const { return model_id_; }

  // REQUIRES: `name` is one of TensorInventory(config()).
  const TensorView& Find(std::string_view name) const;
  // The file that holds it, for messages.
  const std::string& FileOf(std::string_view name) const;
  // Tells the system that the pages of this tensor's file range are not needed any more.
  void DropPages(std::string_view name) const;

  // All tensors by name, for `lodestone inspect`.
  struct Entry {
    std::string name;
    std::string file;
    TensorView tensor;
  };
  std::vector<Entry> Entries() const;

 private:
  struct Located {
    const SafetensorsFile* file = nullptr;
    TensorView tensor;
  };

  Checkpoint() = default;
  static absl::StatusOr<Checkpoint> TryOpen(const std::string& directory,
                                            const CheckpointOptions& options);
  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenSharded(const std::string& directory);
  absl::Status AddFile(const std::string& path);
  absl::Status AddShard(const std::string& directory, const std::string& shard,
                        const WeightMap& weight_map);
  absl::Status AddOverlay(const std::string& path);
  void SkipDraftBlocks();
  absl::Status CheckTensors() const;
  std::string HashFiles(std::string_view config_text, bool whole_files) const;

  ModelConfig config_;
  std::string model_id_;
  std::string listing_path_;  // the index, or the single file: where the list of tensors comes from
  std::string index_text_;    // empty without an index
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // shards in name order
  std::unique_ptr<SafetensorsFile> overlay_;
  std::map<std::string, Located, std::less<>> tensors_;
};

}  // namespace lodestone

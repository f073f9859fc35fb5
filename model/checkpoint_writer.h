#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/inventory.h"
#include "model/model_config.h"

namespace lodestone {

// Writes a checkpoint folder in the official layout, front to back: a shard for the embedding, one
// for each layer, one for the head, the index, and config.json last, so that a folder without one
// is a write that did not end. Tensors are all that the config asks for, in `order()`.
class CheckpointWriter {
 public:
  // ALREADY_EXISTS if `directory` is there and not an empty folder: nothing is ever overwritten.
  // INVALID_ARGUMENT as ParseModelConfig. `metadata` goes into every shard's header, which the
  // model id covers: name there what made the weights.
  static absl::StatusOr<CheckpointWriter> Create(
      const std::string& directory, const std::string& config_text,
      const std::map<std::string, std::string>& metadata);
  CheckpointWriter(CheckpointWriter&&) = default;
  CheckpointWriter& operator=(CheckpointWriter&&) = default;

  const ModelConfig& config() const { return config_; }
  // Every tensor in the order of writing: within a shard, larger elements first, so that all lie
  // aligned; the scales of a matrix right after it.
  const std::vector<TensorSpec>& order() const { return order_; }
  int64_t total_bytes() const { return total_bytes_; }

  // The next bytes of the tensors, in order; a tensor may come in pieces. RESOURCE_EXHAUSTED when
  // the disk is full. After an error every call returns that error. REQUIRES: no more than
  // total_bytes in all.
  absl::Status Append(std::span<const std::byte> bytes);
  // REQUIRES: total_bytes were appended.
  absl::Status Finish();

 private:
  struct Shard {
    std::string file;
    size_t first = 0;  // in order_
    size_t end = 0;
    int64_t bytes = 0;
  };

  CheckpointWriter() = default;
  void AddShard(std::vector<TensorSpec> specs);
  std::string HeaderOf(const Shard& shard) const;
  absl::Status TryAppend(std::span<const std::byte> bytes);
  absl::Status OpenShard();
  absl::Status CloseShard();
  std::string IndexText() const;

  std::string directory_;
  std::string config_text_;
  std::map<std::string, std::string> metadata_;
  ModelConfig config_;
  std::vector<TensorSpec> order_;
  std::vector<Shard> shards_;
  int64_t total_bytes_ = 0;

  size_t next_shard_ = 0;   // the one to open next
  int64_t bytes_left_ = 0;  // of the open shard
  absl::Status failure_;    // of the first Append that failed
  std::ofstream file_;
};

// Bytes of a tensor as a file holds it.
int64_t TensorBytes(const TensorSpec& spec);

}  // namespace lodestone

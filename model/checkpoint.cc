#include "model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "model/inventory.h"
#include "model/sha256.h"
#include "model/strict_json.h"
#include "model/weight_map.h"

namespace lodestone {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kDraftPrefix = "mtp.";

absl::Status FileError(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(path + ": " + what);
}

absl::Status TensorError(const std::string& path, std::string_view name, const std::string& what) {
  return FileError(path, "tensor '" + std::string(name) + "' " + what);
}

// Even if it cannot be read, as a link that leads nowhere cannot: then opening it says why.
bool IsThere(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// What to do about a tensor that does not match, where there is an easy answer.
std::string Advice(DType dtype) {
  if (dtype == DType::kI8) return "; FP4 experts need the config key expert_dtype \"fp4\"";
  if (dtype == DType::kF8E4M3 || dtype == DType::kF8E8M0) {
    return "; FP8 weights need the config key quantization_config";
  }
  return "";
}

bool SameShape(const TensorView& tensor, const std::vector<int64_t>& shape) {
  return std::equal(shape.begin(), shape.end(), tensor.shape.begin(),
                    tensor.shape.begin() + tensor.rank);
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory,
                                            const CheckpointOptions& options) {
  return CatchOutOfMemory("for a checkpoint", [&] { return TryOpen(directory, options); });
}

absl::StatusOr<Checkpoint> Checkpoint::TryOpen(const std::string& directory,
                                               const CheckpointOptions& options) {
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(checkpoint.config_, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(directory + "/config.json"));
  const std::string single = directory + "/" + std::string(kSingleFile);
  const std::string index = directory + "/" + std::string(kIndexFile);
  if (IsThere(index)) {
    RETURN_IF_ERROR(checkpoint.OpenSharded(directory));
  } else if (IsThere(single)) {
    RETURN_IF_ERROR(checkpoint.OpenSingle(single));
  } else {
    return absl::NotFoundError(directory + ": has neither " + std::string(kIndexFile) + " nor " +
                               std::string(kSingleFile));
  }
  checkpoint.SkipDraftBlocks();
  RETURN_IF_ERROR(checkpoint.CheckTensors());
  if (!options.overlay.empty()) RETURN_IF_ERROR(checkpoint.AddOverlay(options.overlay));
  checkpoint.model_id_ = checkpoint.HashFiles(config_text, options.verify_weights);
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::string& path) {
  listing_path_ = path;
  return AddFile(path);
}

absl::Status Checkpoint::OpenSharded(const std::string& directory) {
  listing_path_ = directory + "/" + std::string(kIndexFile);
  ASSIGN_OR_RETURN(index_text_, ReadTextFile(listing_path_));
  const absl::StatusOr<WeightMap> parsed = ParseWeightMap(index_text_);
  if (!parsed.ok()) return FileError(listing_path_, std::string(parsed.status().message()));
  const WeightMap& weight_map = *parsed;
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  for (const std::string& shard : shards) {
    RETURN_IF_ERROR(AddShard(directory, shard, weight_map));
  }
  for (const auto& [name, shard] : weight_map) {
    if (!tensors_.contains(name)) {
      return TensorError(directory + "/" + shard, name,
                         "is missing, " + std::string(kIndexFile) + " places it there");
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const SafetensorsEntry& entry : file->entries()) {
    const auto [place, added] =
        tensors_.try_emplace(entry.name, Located{file.get(), file->Tensor(entry)});
    if (!added) {
      return TensorError(path, entry.name, "is also in " + place->second.file->path());
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::AddShard(const std::string& directory, const std::string& shard,
                                  const WeightMap& weight_map) {
  const std::string path = directory + "/" + shard;
  RETURN_IF_ERROR(AddFile(path));
  for (const SafetensorsEntry& entry : files_.back()->entries()) {
    const auto place = weight_map.find(entry.name);
    if (place == weight_map.end()) {
      return TensorError(path, entry.name, "is not in " + std::string(kIndexFile));
    }
    if (place->second != shard) {
      return TensorError(path, entry.name,
                         "is here, " + std::string(kIndexFile) + " places it in " + place->second);
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddOverlay(const std::string& path) {
  ASSIGN_OR_RETURN(overlay_, SafetensorsFile::Open(path));
  for (const SafetensorsEntry& entry : overlay_->entries()) {
    const auto place = tensors_.find(entry.name);
    if (place == tensors_.end()) {
      return TensorError(path, entry.name, "replaces nothing: the checkpoint has no such tensor");
    }
    const TensorView replacement = overlay_->Tensor(entry);
    const TensorView& replaced = place->second.tensor;
    if (replacement.ShapeString() != replaced.ShapeString()) {
      return TensorError(
          path, entry.name,
          "is " + replacement.ShapeString() + ", the checkpoint has " + replaced.ShapeString());
    }
    place->second = Located{overlay_.get(), replacement};
  }
  return absl::OkStatus();
}

void Checkpoint::SkipDraftBlocks() {
  const size_t num_skipped = std::erase_if(
      tensors_, [](const auto& item) { return item.first.starts_with(kDraftPrefix); });
  if (num_skipped > 0) {
    LOG(INFO) << "skipping " << num_skipped << " tensors of the draft block (mtp.*)";
  }
}

absl::Status Checkpoint::CheckTensors() const {
  std::set<std::string_view> expected;
  const std::vector<TensorSpec> inventory = TensorInventory(config_);
  for (const TensorSpec& spec : inventory) {
    expected.insert(spec.name);
    const auto place = tensors_.find(spec.name);
    if (place == tensors_.end()) {
      return TensorError(listing_path_, spec.name,
                         "is missing, config.json asks for " + spec.ShapeString());
    }
    const Located& located = place->second;
    if (located.tensor.dtype != spec.dtype || !SameShape(located.tensor, spec.shape)) {
      return TensorError(
          located.file->path(), spec.name,
          "is " + located.tensor.ShapeString() + ", config.json asks for " + spec.ShapeString() +
              Advice(located.tensor.dtype));
    }
  }
  for (const auto& [name, located] : tensors_) {
    if (!expected.contains(name)) {
      return TensorError(
          located.file->path(), name,
          "is surplus (" + located.tensor.ShapeString() + "), config.json has no place for it" +
              Advice(located.tensor.dtype));
    }
  }
  return absl::OkStatus();
}

std::string Checkpoint::HashFiles(std::string_view config_text, bool whole_files) const {
  Sha256 hash;
  hash.AddPart("config", config_text);
  hash.AddPart("index", index_text_);
  for (const std::unique_ptr<SafetensorsFile>& file : files_) {
    const std::string shard = std::filesystem::path(file->path()).filename();
    hash.AddPart(shard, whole_files ? file->bytes() : file->header());
    if (whole_files) file->DropPages(file->bytes());
  }
  if (overlay_ != nullptr) hash.AddPart("overlay", overlay_->bytes());
  return hash.Finish();
}

const TensorView& Checkpoint::Find(std::string_view name) const {
  const auto place = tensors_.find(name);
  CHECK(place != tensors_.end()) << "no tensor " << name << " in the inventory";
  return place->second.tensor;
}

const std::string& Checkpoint::FileOf(std::string_view name) const {
  const auto place = tensors_.find(name);
  CHECK(place != tensors_.end()) << "no tensor " << name << " in the inventory";
  return place->second.file->path();
}

void Checkpoint::DropPages(std::string_view name) const {
  const auto place = tensors_.find(name);
  CHECK(place != tensors_.end()) << "no tensor " << name << " in the inventory";
  const TensorView& tensor = place->second.tensor;
  place->second.file->DropPages(
      {static_cast<const std::byte*>(tensor.data), static_cast<size_t>(tensor.num_bytes())});
}

std::vector<Checkpoint::Entry> Checkpoint::Entries() const {
  std::vector<Entry> entries;
  for (const auto& [name, located] : tensors_) {
    entries.push_back({name, located.file->path(), located.tensor});
  }
  return entries;
}

}  // namespace lodestone

#include "model/checkpoint_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"

namespace lodestone {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

absl::Status WriteError(const std::string& path, int error) {
  const std::string message = path + ": cannot write: " + std::strerror(error);
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(message)
                                            : absl::UnavailableError(message);
}

// Why a stream failed that `errno` was 0 before: it may do so without a call of the kernel.
int WhyStreamFailed() { return errno != 0 ? errno : EIO; }

absl::Status MakeEmptyFolder(const std::string& directory) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(directory, error)) &&
      !(fs::is_directory(directory, error) && fs::is_empty(directory, error))) {
    return absl::AlreadyExistsError(directory + ": exists; nothing is overwritten");
  }
  fs::create_directories(directory, error);
  if (error) return WriteError(directory, error.value());
  return absl::OkStatus();
}

absl::Status WriteWhole(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus() : WriteError(path, WhyStreamFailed());
}

json::array ShapeOf(const TensorSpec& spec) {
  json::array dims;
  for (const int64_t dim : spec.shape) dims.push_back(dim);
  return dims;
}

}  // namespace

int64_t TensorBytes(const TensorSpec& spec) {
  int64_t bytes = BytesPerElement(spec.dtype);
  for (const int64_t dim : spec.shape) bytes *= dim;
  return bytes;
}

absl::StatusOr<CheckpointWriter> CheckpointWriter::Create(
    const std::string& directory, const std::string& config_text,
    const std::map<std::string, std::string>& metadata) {
  CheckpointWriter writer;
  ASSIGN_OR_RETURN(writer.config_, ParseModelConfig(config_text));
  RETURN_IF_ERROR(MakeEmptyFolder(directory));
  writer.directory_ = directory;
  writer.config_text_ = config_text;
  writer.metadata_ = metadata;

  std::vector<TensorSpec> first, last;
  std::vector<std::vector<TensorSpec>> layers(static_cast<size_t>(writer.config_.num_layers));
  for (TensorSpec& spec : TensorInventory(writer.config_)) {
    constexpr std::string_view kLayer = "layers.";
    if (spec.name.starts_with(kLayer)) {
      layers[std::stoul(spec.name.substr(kLayer.size()))].push_back(std::move(spec));
    } else {
      (spec.name == "embed.weight" ? first : last).push_back(std::move(spec));
    }
  }
  writer.AddShard(std::move(first));
  for (std::vector<TensorSpec>& layer : layers) writer.AddShard(std::move(layer));
  writer.AddShard(std::move(last));
  for (size_t i = 0; i < writer.shards_.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1,
                  writer.shards_.size());
    writer.shards_[i].file = name;
  }
  return writer;
}

void CheckpointWriter::AddShard(std::vector<TensorSpec> specs) {
  std::ranges::stable_sort(specs, std::greater<>(),
                           [](const TensorSpec& spec) { return BytesPerElement(spec.dtype); });
  Shard shard;
  shard.first = order_.size();
  for (TensorSpec& spec : specs) {
    shard.bytes += TensorBytes(spec);
    order_.push_back(std::move(spec));
  }
  shard.end = order_.size();
  total_bytes_ += shard.bytes;
  shards_.push_back(std::move(shard));
}

// Length and JSON text, padded so that the data start at a multiple of 8.
std::string CheckpointWriter::HeaderOf(const Shard& shard) const {
  json::object header;
  json::object metadata{{"format", "pt"}};
  for (const auto& [key, value] : metadata_) metadata[key] = value;
  header["__metadata__"] = metadata;
  int64_t at = 0;
  for (size_t i = shard.first; i < shard.end; ++i) {
    const TensorSpec& spec = order_[i];
    const std::string dtype(Name(spec.dtype));
    header[spec.name] = {
        {"dtype", dtype}, {"shape", ShapeOf(spec)}, {"data_offsets", {at, at + TensorBytes(spec)}}};
    at += TensorBytes(spec);
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i) & 255);
  return bytes + text;
}

absl::Status CheckpointWriter::OpenShard() {
  const Shard& shard = shards_[next_shard_++];
  const std::string path = directory_ + "/" + shard.file;
  errno = 0;
  file_.open(path, std::ios::binary);
  if (!file_) return WriteError(path, WhyStreamFailed());
  const std::string header = HeaderOf(shard);
  file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  bytes_left_ = shard.bytes;
  return file_ ? absl::OkStatus() : WriteError(path, WhyStreamFailed());
}

absl::Status CheckpointWriter::CloseShard() {
  file_.close();
  if (file_) return absl::OkStatus();
  return WriteError(directory_ + "/" + shards_[next_shard_ - 1].file, WhyStreamFailed());
}

absl::Status CheckpointWriter::Append(std::span<const std::byte> bytes) {
  if (failure_.ok()) failure_ = TryAppend(bytes);
  return failure_;
}

absl::Status CheckpointWriter::TryAppend(std::span<const std::byte> bytes) {
  errno = 0;
  while (!bytes.empty()) {
    if (bytes_left_ == 0) {
      CHECK(next_shard_ < shards_.size()) << "more bytes than the tensors have";
      RETURN_IF_ERROR(OpenShard());
      continue;
    }
    const size_t count = std::min(bytes.size(), static_cast<size_t>(bytes_left_));
    file_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(count));
    if (!file_) {
      return WriteError(directory_ + "/" + shards_[next_shard_ - 1].file, WhyStreamFailed());
    }
    bytes = bytes.subspan(count);
    bytes_left_ -= static_cast<int64_t>(count);
    if (bytes_left_ == 0) RETURN_IF_ERROR(CloseShard());
  }
  return absl::OkStatus();
}

std::string CheckpointWriter::IndexText() const {
  json::object map;
  for (const Shard& shard : shards_) {
    for (size_t i = shard.first; i < shard.end; ++i) map[order_[i].name] = shard.file;
  }
  return json::serialize(
      json::object{{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", map}});
}

absl::Status CheckpointWriter::Finish() {
  CHECK(next_shard_ == shards_.size() && bytes_left_ == 0) << "tensors are missing";
  RETURN_IF_ERROR(WriteWhole(directory_ + "/model.safetensors.index.json", IndexText()));
  return WriteWhole(directory_ + "/config.json", config_text_);
}

}  // namespace lodestone

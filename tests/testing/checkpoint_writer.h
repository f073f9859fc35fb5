#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "boost/json/object.hpp"

namespace lodestone {

// A tensor as it is written to a file; dtype by its safetensors name.
struct RawTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  // Zero bytes of the right number. REQUIRES: a dtype that the product knows.
  static RawTensor Zeros(const std::string& dtype, const std::vector<int64_t>& shape);
};

// The bytes of a safetensors file: length, header, data. `header` may be anything.
std::string SafetensorsBytes(std::string_view header, std::string_view data);
// With a correct header, tensors in name order.
std::string SafetensorsBytes(const std::map<std::string, RawTensor>& tensors);

void WriteFile(const std::string& path, std::string_view bytes);
std::string ReadFileBytes(const std::string& path);

// A small checkpoint in two shards that a test may spoil before it writes it: two layers of ratio 4
// and 128, the first hash-routed; values are zeros except the hash table.
struct CheckpointFixture {
  explicit CheckpointFixture(int64_t vocab_size = 32);
  // config.json, both shards and the index.
  void Write(const std::string& directory) const;
  // config.json and model.safetensors.
  void WriteSingle(const std::string& directory) const;

  boost::json::object config;
  // Shard name to its tensors.
  std::map<std::string, std::map<std::string, RawTensor>> shards;
  // Tensor name to shard name; starts as what the shards hold.
  std::map<std::string, std::string> weight_map;
};

}  // namespace lodestone

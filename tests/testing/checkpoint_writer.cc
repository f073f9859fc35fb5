#include "tests/testing/checkpoint_writer.h"

#include <fstream>
#include <iterator>

#include "base/logging.h"
#include "boost/json/array.hpp"
#include "boost/json/serialize.hpp"
#include "boost/json/value.hpp"
#include "model/inventory.h"
#include "model/model_config.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr char kFirstShard[] = "model-00001-of-00002.safetensors";
constexpr char kSecondShard[] = "model-00002-of-00002.safetensors";

int64_t ElementBytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "I64") return 8;
  return dtype == "BF16" ? 2 : 1;
}

json::object SmallConfig(int64_t vocab_size) {
  return {{"model_type", "deepseek_v4"},
          {"vocab_size", vocab_size},
          {"hidden_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 16},
          {"o_lora_rank", 8},
          {"o_groups", 2},
          {"sliding_window", 128},
          {"compress_ratios", {4, 128, 0}},
          {"index_n_heads", 2},
          {"index_head_dim", 64},
          {"index_topk", 16},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"original_max_position_embeddings", 65536},
            {"beta_fast", 32},
            {"beta_slow", 1}}},
          {"max_position_embeddings", 1048576},
          {"n_routed_experts", 4},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 16},
          {"num_hash_layers", 1},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 1.5},
          {"swiglu_limit", 10.0},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"rms_norm_eps", 1e-6},
          {"bos_token_id", 0},
          {"eos_token_id", 1}};
}

}  // namespace

RawTensor RawTensor::Zeros(const std::string& dtype, const std::vector<int64_t>& shape) {
  int64_t num_bytes = ElementBytes(dtype);
  for (const int64_t dim : shape) num_bytes *= dim;
  return {dtype, shape, std::string(static_cast<size_t>(num_bytes), '\0')};
}

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes.append(header).append(data);
}

std::string SafetensorsBytes(const std::map<std::string, RawTensor>& tensors) {
  json::object header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                    {"data_offsets", {begin, data.size()}}};
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return SafetensorsBytes(text, data);
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  CHECK(file.good()) << "cannot write " << path;
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << "cannot read " << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

CheckpointFixture::CheckpointFixture(int64_t vocab_size) : config(SmallConfig(vocab_size)) {
  const absl::StatusOr<ModelConfig> parsed = ParseModelConfig(json::serialize(config));
  CHECK(parsed.ok()) << parsed.status().message();
  for (const TensorSpec& spec : TensorInventory(*parsed)) {
    const std::string shard = spec.name.starts_with("layers.1.") ? kSecondShard : kFirstShard;
    shards[shard][spec.name] = RawTensor::Zeros(std::string(Name(spec.dtype)), spec.shape);
    weight_map[spec.name] = shard;
  }
  // Token t is sent to experts t mod 4 and (t + 1) mod 4.
  RawTensor& table = shards[kFirstShard]["layers.0.ffn.gate.tid2eid"];
  for (size_t i = 0; i < table.bytes.size() / 8; ++i) {
    table.bytes[8 * i] = static_cast<char>((i / 2 + i % 2) % 4);
  }
}

void CheckpointFixture::Write(const std::string& directory) const {
  WriteFile(directory + "/config.json", json::serialize(config));
  json::object map;
  for (const auto& [name, shard] : weight_map) map[name] = shard;
  WriteFile(directory + "/model.safetensors.index.json",
            json::serialize(json::object{{"weight_map", map}}));
  for (const auto& [shard, tensors] : shards) {
    WriteFile(directory + "/" + shard, SafetensorsBytes(tensors));
  }
}

void CheckpointFixture::WriteSingle(const std::string& directory) const {
  WriteFile(directory + "/config.json", json::serialize(config));
  std::map<std::string, RawTensor> all;
  for (const auto& [shard, tensors] : shards) all.insert(tensors.begin(), tensors.end());
  WriteFile(directory + "/model.safetensors", SafetensorsBytes(all));
}

}  // namespace lodestone

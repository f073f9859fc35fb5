#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/cache_format.h"
#include "runtime/weight_format.h"

namespace lodestone {

// Stretch of the rotary table for contexts beyond the trained length (docs/model.md 7.2).
struct YarnScaling {
  double factor = 1;
  int64_t original_positions = 0;
  double beta_fast = 0;
  double beta_slow = 0;
};

// Hyper-parameters of a DeepSeek-V4 model, all from its config.json; nothing is compiled in.
// A ModelConfig that ParseModelConfig returned is consistent: every size is positive and bounded,
// and the relations that the ops rely on hold.
struct ModelConfig {
  int64_t vocab_size = 0;                // V
  int64_t hidden_size = 0;               // D
  int64_t num_layers = 0;                // without MTP blocks
  int64_t num_heads = 0;                 // H
  int64_t head_dim = 0;                  // d
  int64_t rope_dims = 0;                 // r_d, the last dims of every head
  int64_t q_lora_rank = 0;               // R_q
  int64_t o_lora_rank = 0;               // R_o, per group
  int64_t output_groups = 0;             // G, divides H
  int64_t window = 0;                    // W
  std::vector<int64_t> compress_ratios;  // [num_layers]: 0 window, 4 indexed, 128 dense

  int64_t index_heads = 0;     // H_i
  int64_t index_head_dim = 0;  // d_i
  int64_t index_top_k = 0;     // K_i

  int64_t num_experts = 0;  // E
  int64_t experts_per_token = 0;
  int64_t expert_width = 0;     // I
  int64_t num_hash_layers = 0;  // the first ones; they choose experts by token id
  float routed_scale = 0;
  float swiglu_limit = 0;

  int64_t num_streams = 0;  // M
  int sinkhorn_iters = 0;
  float hc_eps = 0;
  float rms_eps = 0;

  double rope_theta = 0;           // window layers, plain
  double compress_rope_theta = 0;  // layers with compressed entries, with `yarn`
  YarnScaling yarn;
  int64_t max_context_tokens = 0;  // max_position_embeddings

  int32_t bos_id = 0;
  std::vector<int32_t> eos_ids;   // at least one

  // Storage of matrices (docs/model.md 3.2): kBf16, or kFp8 with a quantization_config; those of
  // routed experts also kFp4 (expert_dtype).
  WeightFormat dense_format = WeightFormat::kBf16;
  WeightFormat expert_format = WeightFormat::kBf16;

  int64_t ratio(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  bool is_indexed(int64_t layer) const { return ratio(layer) == 4; }
  bool uses_hash_routing(int64_t layer) const { return layer < num_hash_layers; }
  int64_t heads_per_group() const { return num_heads / output_groups; }
  bool is_quantised() const { return IsQuantised(dense_format) || IsQuantised(expert_format); }
};

// Reads the text of a config.json with the official key names. INVALID_ARGUMENT naming the key and
// what is wrong with it (both values of a contradiction) for a missing key, a wrong type, a size
// that is not positive or absurdly large, and for anything this model code does not compute.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

// ParseModelConfig of `directory`/config.json; NOT_FOUND if there is none. Errors name the file.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

// What `--numerics auto` stands for: `reference` for a model with FP8 or FP4 weights, which goes
// with the vendor's other FP8/FP4 steps, `plain` for others.
Numerics AutoNumerics(const ModelConfig& config);

// Rotary frequencies [rope_dims / 2] in fp32 (docs/model.md 7.2): the plain table of window layers
// and the YaRN table of layers with compressed entries.
std::vector<float> WindowFrequencies(const ModelConfig& config);
std::vector<float> CompressedFrequencies(const ModelConfig& config);

}  // namespace lodestone

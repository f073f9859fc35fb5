#include "model/model_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <sstream>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "boost/json/value.hpp"
#include "model/strict_json.h"

namespace lodestone {
namespace {

namespace json = boost::json;

// Above any model of this family, within what every backend computes, and low enough that no count
// of bytes can wrap: a matrix has at most kMaxRows x kMaxWidth elements, a model has
// 3 x kMaxLayers x kMaxExperts of them.
constexpr int64_t kMaxVocab = 1 << 20;
constexpr int64_t kMaxWidth = 1 << 17;     // inputs or outputs of a product
constexpr int64_t kMaxRows = 1 << 22;      // outputs of a product over all heads or groups
constexpr int64_t kMaxIndexRow = 1 << 16;  // index heads times their dim
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxWindow = 1 << 16;
constexpr int64_t kMaxTopK = 1 << 15;
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxExpertsPerToken = 32;
constexpr int64_t kMaxStreams = 8;
constexpr int64_t kMaxSinkhornIters = 1000;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kMaxRatio = 128;
constexpr int64_t kRopeGroup = 16;  // rotary dims come in whole vectors

absl::Status KeyError(std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError("config key '" + std::string(key) + "' " + what);
}

// Reads keys of one object; the first failure sticks and later reads return the fallback, so that
// the caller can list all keys and check once.
class KeyReader {
 public:
  explicit KeyReader(const json::object& object) : object_(object) {}

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  int64_t Integer(std::string_view key, int64_t min, int64_t max) {
    const json::value* value = Required(key);
    if (value == nullptr) return min;
    return CheckInteger(key, *value, min, max);
  }
  int64_t Width(std::string_view key) { return Integer(key, 1, kMaxWidth); }

  double Number(std::string_view key, double min, double max) {
    const json::value* value = Required(key);
    if (value == nullptr) return min;
    if (!value->is_number()) {
      Fail(KeyError(key, "is " + json::serialize(*value) + ", expected a number"));
      return min;
    }
    const double number = value->to_number<double>();
    if (!(number >= min && number <= max)) {
      std::ostringstream range;
      range << "is " << number << ", expected " << min << " to " << max;
      Fail(KeyError(key, range.str()));
    }
    return number;
  }

  // A key that may be absent, but must have this value if present: another would need model code
  // that does not exist.
  void Fixed(std::string_view key, const json::value& expected) {
    const json::value* value = object_.if_contains(View(key));
    if (value != nullptr && *value != expected) {
      Fail(KeyError(key, "is " + json::serialize(*value) + ", only " + json::serialize(expected) +
                             " is supported"));
    }
  }
  void RequiredFixed(std::string_view key, const json::value& expected) {
    if (Required(key) != nullptr) Fixed(key, expected);
  }

  const json::value* Required(std::string_view key) {
    const json::value* value = object_.if_contains(View(key));
    if (value == nullptr) Fail(KeyError(key, "is missing"));
    return value;
  }

  int64_t CheckInteger(std::string_view key, const json::value& value, int64_t min, int64_t max) {
    const bool whole = value.is_int64();
    if (whole && value.get_int64() >= min && value.get_int64() <= max) return value.get_int64();
    Fail(KeyError(key, "is " + json::serialize(value) + ", expected an integer from " +
                           std::to_string(min) + " to " + std::to_string(max)));
    return min;
  }

  static json::string_view View(std::string_view text) { return {text.data(), text.size()}; }

 private:
  const json::object& object_;
  absl::Status status_;
};

void ReadDims(KeyReader& keys, ModelConfig& config) {
  config.vocab_size = keys.Integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = keys.Width("hidden_size");
  config.num_layers = keys.Integer("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = keys.Integer("num_attention_heads", 1, kMaxHeads);
  config.head_dim = keys.Integer("head_dim", 1, kMaxHeadDim);
  config.rope_dims = keys.Integer("qk_rope_head_dim", 1, kMaxHeadDim);
  config.q_lora_rank = keys.Width("q_lora_rank");
  config.o_lora_rank = keys.Width("o_lora_rank");
  config.output_groups = keys.Integer("o_groups", 1, kMaxHeads);
  config.window = keys.Integer("sliding_window", 1, kMaxWindow);
  config.index_heads = keys.Integer("index_n_heads", 1, kMaxHeads);
  config.index_head_dim = keys.Integer("index_head_dim", 1, kMaxHeadDim);
  config.index_top_k = keys.Integer("index_topk", 1, kMaxTopK);
  config.num_experts = keys.Integer("n_routed_experts", 1, kMaxExperts);
  config.experts_per_token = keys.Integer("num_experts_per_tok", 1, kMaxExpertsPerToken);
  config.expert_width = keys.Width("moe_intermediate_size");
  config.num_hash_layers = keys.Integer("num_hash_layers", 0, kMaxLayers);
  config.num_streams = keys.Integer("hc_mult", 1, kMaxStreams);
  config.sinkhorn_iters = static_cast<int>(keys.Integer("hc_sinkhorn_iters", 1, kMaxSinkhornIters));
  config.max_context_tokens = keys.Integer("max_position_embeddings", 1, kMaxPositions);
}

void ReadNumbers(KeyReader& keys, ModelConfig& config) {
  config.routed_scale = static_cast<float>(keys.Number("routed_scaling_factor", 1e-6, 1e6));
  config.swiglu_limit = static_cast<float>(keys.Number("swiglu_limit", 1e-6, 1e6));
  config.hc_eps = static_cast<float>(keys.Number("hc_eps", 1e-20, 0.1));
  config.rms_eps = static_cast<float>(keys.Number("rms_norm_eps", 1e-20, 0.1));
  config.rope_theta = keys.Number("rope_theta", 1.0001, 1e12);
  config.compress_rope_theta = keys.Number("compress_rope_theta", 1.0001, 1e12);
}

void ReadFixedChoices(KeyReader& keys) {
  keys.RequiredFixed("model_type", "deepseek_v4");
  keys.RequiredFixed("num_key_value_heads", 1);
  keys.RequiredFixed("n_shared_experts", 1);
  keys.RequiredFixed("scoring_func", "sqrtsoftplus");
  keys.RequiredFixed("topk_method", "noaux_tc");
  keys.RequiredFixed("norm_topk_prob", true);
  keys.Fixed("hidden_act", "silu");
  keys.Fixed("attention_bias", false);
  keys.Fixed("tie_word_embeddings", false);
}

void ReadRatios(KeyReader& keys, ModelConfig& config) {
  const json::value* value = keys.Required("compress_ratios");
  if (value == nullptr) return;
  if (!value->is_array()) {
    keys.Fail(KeyError("compress_ratios", "is not a list"));
    return;
  }
  const json::array& list = value->get_array();
  if (list.size() < static_cast<size_t>(config.num_layers)) {
    keys.Fail(KeyError("compress_ratios", "has " + std::to_string(list.size()) +
                                              " entries, num_hidden_layers is " +
                                              std::to_string(config.num_layers)));
    return;
  }
  // Entries beyond the layers belong to draft blocks.
  for (size_t layer = 0; layer < static_cast<size_t>(config.num_layers); ++layer) {
    const int64_t ratio = keys.CheckInteger("compress_ratios", list[layer], 0, kMaxRatio);
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      keys.Fail(KeyError("compress_ratios", "has " + std::to_string(ratio) + " for layer " +
                                                std::to_string(layer) + ", expected 0, 4 or 128"));
    }
    config.compress_ratios.push_back(ratio);
  }
}

void ReadYarn(KeyReader& keys, ModelConfig& config) {
  const json::value* value = keys.Required("rope_scaling");
  if (value == nullptr) return;
  if (!value->is_object()) {
    keys.Fail(KeyError("rope_scaling", "is not an object"));
    return;
  }
  KeyReader scaling(value->get_object());
  const bool new_name = value->get_object().contains("rope_type");
  scaling.RequiredFixed(new_name ? "rope_type" : "type", "yarn");
  config.yarn.factor = scaling.Number("factor", 1, 1e6);
  config.yarn.original_positions =
      scaling.Integer("original_max_position_embeddings", 1, kMaxPositions);
  config.yarn.beta_fast = scaling.Number("beta_fast", 1e-3, 1e6);
  config.yarn.beta_slow = scaling.Number("beta_slow", 1e-3, 1e6);
  if (!scaling.status().ok()) {
    keys.Fail(
        absl::InvalidArgumentError("in rope_scaling: " + std::string(scaling.status().message())));
  }
}

void ReadTokenIds(KeyReader& keys, ModelConfig& config) {
  const int64_t max_id = config.vocab_size - 1;
  config.bos_id = static_cast<int32_t>(keys.Integer("bos_token_id", 0, max_id));
  const json::value* eos = keys.Required("eos_token_id");
  if (eos == nullptr) return;
  const json::array ids = eos->is_array() ? eos->get_array() : json::array{*eos};
  if (ids.empty()) keys.Fail(KeyError("eos_token_id", "is an empty list"));
  for (const json::value& id : ids) {
    config.eos_ids.push_back(
        static_cast<int32_t>(keys.CheckInteger("eos_token_id", id, 0, max_id)));
  }
}

// Of the official FP8 form there is only one.
void ReadQuantisation(KeyReader& keys, const json::object& object, ModelConfig& config) {
  const json::value* value = object.if_contains("quantization_config");
  if (value == nullptr || value->is_null()) return;
  if (!value->is_object()) {
    keys.Fail(KeyError("quantization_config", "is not an object"));
    return;
  }
  KeyReader quantisation(value->get_object());
  quantisation.RequiredFixed("quant_method", "fp8");
  quantisation.Fixed("fmt", "e4m3");
  quantisation.Fixed("scale_fmt", "ue8m0");
  quantisation.Fixed("activation_scheme", "dynamic");
  quantisation.Fixed("weight_block_size", json::array{kQuantisedGroup, kQuantisedGroup});
  if (!quantisation.status().ok()) {
    keys.Fail(absl::InvalidArgumentError("in quantization_config: " +
                                         std::string(quantisation.status().message())));
  }
  config.dense_format = WeightFormat::kFp8;
}

// Without an expert_dtype the experts are stored like the rest.
void ReadExpertFormat(KeyReader& keys, const json::object& object, ModelConfig& config) {
  config.expert_format = config.dense_format;
  const json::value* value = object.if_contains("expert_dtype");
  if (value == nullptr || value->is_null()) return;
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp4}) {
    if (*value == json::value(KeyReader::View(Name(format)))) {
      config.expert_format = format;
      return;
    }
  }
  keys.Fail(KeyError("expert_dtype", "is " + json::serialize(*value) +
                                         ", expected \"bf16\", \"fp8\" or \"fp4\""));
}

// `ok` or an error that carries both values.
absl::Status Relation(bool ok, std::string_view key, int64_t value, std::string_view rule,
                      std::string_view other, int64_t other_value) {
  if (ok) return absl::OkStatus();
  return KeyError(key, "is " + std::to_string(value) + ", " + std::string(rule) + " " +
                           std::string(other) + " (" + std::to_string(other_value) + ")");
}

// The outputs of one product, written as (key a) times (key b).
absl::Status CheckRows(std::string_view a, int64_t a_value, std::string_view b, int64_t b_value,
                       int64_t limit = kMaxRows) {
  if (a_value * b_value <= limit) return absl::OkStatus();
  return KeyError(a, "is " + std::to_string(a_value) + ", times " + std::string(b) + " (" +
                         std::to_string(b_value) + ") exceeds " + std::to_string(limit));
}

absl::Status CheckRelations(const ModelConfig& c) {
  RETURN_IF_ERROR(CheckRows("num_attention_heads", c.num_heads, "head_dim", c.head_dim));
  RETURN_IF_ERROR(
      CheckRows("index_n_heads", c.index_heads, "index_head_dim", c.index_head_dim, kMaxIndexRow));
  RETURN_IF_ERROR(CheckRows("o_groups", c.output_groups, "o_lora_rank", c.o_lora_rank));
  RETURN_IF_ERROR(CheckRows("hc_mult", c.num_streams, "hidden_size", c.hidden_size));
  RETURN_IF_ERROR(Relation(c.num_heads % c.output_groups == 0, "num_attention_heads", c.num_heads,
                           "must be a multiple of", "o_groups", c.output_groups));
  RETURN_IF_ERROR(Relation(c.rope_dims < c.head_dim, "qk_rope_head_dim", c.rope_dims,
                           "must be less than", "head_dim", c.head_dim));
  RETURN_IF_ERROR(Relation(c.rope_dims % kRopeGroup == 0, "qk_rope_head_dim", c.rope_dims,
                           "must be a multiple of", "the rotary group", kRopeGroup));
  RETURN_IF_ERROR(Relation((c.head_dim - c.rope_dims) % kFp8KvGroup == 0, "head_dim", c.head_dim,
                           "less qk_rope_head_dim must be a multiple of", "the FP8 group",
                           kFp8KvGroup));
  RETURN_IF_ERROR(Relation(c.rope_dims <= c.index_head_dim, "qk_rope_head_dim", c.rope_dims,
                           "must not exceed", "index_head_dim", c.index_head_dim));
  RETURN_IF_ERROR(Relation(std::has_single_bit(static_cast<uint64_t>(c.index_head_dim)) &&
                               c.index_head_dim % kFp4Group == 0,
                           "index_head_dim", c.index_head_dim,
                           "must be a power of two and a multiple of", "the FP4 group", kFp4Group));
  RETURN_IF_ERROR(Relation(std::has_single_bit(static_cast<uint64_t>(c.window)), "sliding_window",
                           c.window, "must be a power of two, like", "the official one", 128));
  RETURN_IF_ERROR(Relation(c.experts_per_token <= c.num_experts, "num_experts_per_tok",
                           c.experts_per_token, "must not exceed", "n_routed_experts",
                           c.num_experts));
  RETURN_IF_ERROR(Relation(c.num_hash_layers <= c.num_layers, "num_hash_layers", c.num_hash_layers,
                           "must not exceed", "num_hidden_layers", c.num_layers));
  if (c.expert_format == WeightFormat::kFp4) {
    const int64_t group = ScaledInputs(WeightFormat::kFp4);
    RETURN_IF_ERROR(Relation(c.hidden_size % group == 0, "hidden_size", c.hidden_size,
                             "must be a multiple of", "the FP4 group of experts", group));
    RETURN_IF_ERROR(Relation(c.expert_width % group == 0, "moe_intermediate_size", c.expert_width,
                             "must be a multiple of", "the FP4 group of experts", group));
  }
  return Relation(c.yarn.original_positions <= c.max_context_tokens,
                  "original_max_position_embeddings", c.yarn.original_positions, "must not exceed",
                  "max_position_embeddings", c.max_context_tokens);
}

// Rotary pair at which a wave makes `rotations` turns within the original context.
double CorrectionPair(const ModelConfig& config, double rotations) {
  const double dims = static_cast<double>(config.rope_dims);
  const double positions = static_cast<double>(config.yarn.original_positions);
  return dims * std::log(positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.compress_rope_theta));
}

std::vector<float> PlainFrequencies(double theta, int64_t rope_dims) {
  std::vector<float> freqs(static_cast<size_t>(rope_dims / 2));
  for (size_t i = 0; i < freqs.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dims);
    freqs[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  return freqs;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  ASSIGN_OR_RETURN(const json::value root, ParseStrictJson(text));
  if (!root.is_object()) return absl::InvalidArgumentError("config is not a JSON object");
  KeyReader keys(root.get_object());
  ModelConfig config;
  ReadDims(keys, config);
  ReadNumbers(keys, config);
  ReadFixedChoices(keys);
  ReadRatios(keys, config);
  ReadYarn(keys, config);
  ReadTokenIds(keys, config);
  ReadQuantisation(keys, root.get_object(), config);
  ReadExpertFormat(keys, root.get_object(), config);
  RETURN_IF_ERROR(keys.status());
  RETURN_IF_ERROR(CheckRelations(config));
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        path + ": " + std::string(config.status().message()));
  }
  return config;
}

Numerics AutoNumerics(const ModelConfig& config) {
  return config.is_quantised() ? Numerics::kReference : Numerics::kPlain;
}

std::vector<float> WindowFrequencies(const ModelConfig& config) {
  return PlainFrequencies(config.rope_theta, config.rope_dims);
}

std::vector<float> CompressedFrequencies(const ModelConfig& config) {
  std::vector<float> freqs = PlainFrequencies(config.compress_rope_theta, config.rope_dims);
  const double last_pair = static_cast<double>(config.rope_dims) - 1;
  const auto low =
      static_cast<float>(std::max(std::floor(CorrectionPair(config, config.yarn.beta_fast)), 0.0));
  auto high = static_cast<float>(
      std::min(std::ceil(CorrectionPair(config, config.yarn.beta_slow)), last_pair));
  if (high == low) high += 0.001f;  // the vendor's guard against a ramp of no width
  const auto factor = static_cast<float>(config.yarn.factor);
  for (size_t i = 0; i < freqs.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    const float smooth = 1.0f - ramp;
    freqs[i] = freqs[i] / factor * (1.0f - smooth) + freqs[i] * smooth;
  }
  return freqs;
}

}  // namespace lodestone

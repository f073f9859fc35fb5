#include "model/inventory.h"

#include <utility>

namespace lodestone {
namespace {

using Kind = TensorSpec::Kind;

// Appends specs under a name prefix.
class InventoryBuilder {
 public:
  explicit InventoryBuilder(std::vector<TensorSpec>* specs) : specs_(specs) {}

  // A product that every checkpoint keeps in this format.
  void Matrix(const std::string& name, int64_t n, int64_t k,
              WeightFormat format = WeightFormat::kBf16) {
    AddMatrix(name, {.format = format, .n = n, .k = k});
  }
  void F32Matrix(const std::string& name, int64_t n, int64_t k) {
    AddMatrix(name, {.format = WeightFormat::kF32, .n = n, .k = k});
  }
  void AddMatrix(const std::string& name, const MatrixSpec& matrix) {
    const int64_t rows = matrix.groups * matrix.n;
    Add(name, ValueType(matrix.format), {rows, ValueColumns(matrix.format, matrix.k)},
        Kind::kMatrix);
    specs_->back().matrix = matrix;
    if (!IsQuantised(matrix.format)) return;
    Add(ScaleName(name), DType::kF8E8M0,
        {ScaleRows(matrix.format, rows), ScaleColumns(matrix.format, matrix.k)}, Kind::kScale);
  }
  void Bf16(const std::string& name, std::vector<int64_t> shape) {
    Add(name, DType::kBf16, std::move(shape), Kind::kPlain);
  }
  void F32(const std::string& name, std::vector<int64_t> shape) {
    Add(name, DType::kF32, std::move(shape), Kind::kPlain);
  }
  void TokenTable(const std::string& name, int64_t rows, int64_t columns) {
    Add(name, DType::kI64, {rows, columns}, Kind::kTokenTable);
  }

 private:
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, Kind kind) {
    specs_->push_back({name, dtype, std::move(shape), kind, {}});
  }

  std::vector<TensorSpec>* const specs_;
};

void AddHyperConnection(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix) {
  const int64_t mixes = c.num_streams * (c.num_streams + 2);
  add.F32Matrix(prefix + "_fn", mixes, c.num_streams * c.hidden_size);
  add.F32(prefix + "_base", {mixes});
  add.F32(prefix + "_scale", {3});
}

void AddCompressor(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix,
                   int64_t ratio, int64_t output_dim) {
  const int64_t width = output_dim * (ratio == 4 ? 2 : 1);
  add.Matrix(prefix + "wkv.weight", width, c.hidden_size);
  add.Matrix(prefix + "wgate.weight", width, c.hidden_size);
  add.F32(prefix + "ape", {ratio, width});
  add.Bf16(prefix + "norm.weight", {output_dim});
}

void AddAttention(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix,
                  int64_t ratio) {
  add.F32(prefix + "attn_sink", {c.num_heads});
  add.Matrix(prefix + "wq_a.weight", c.q_lora_rank, c.hidden_size, c.dense_format);
  add.Bf16(prefix + "q_norm.weight", {c.q_lora_rank});
  add.Matrix(prefix + "wq_b.weight", c.num_heads * c.head_dim, c.q_lora_rank, c.dense_format);
  add.Matrix(prefix + "wkv.weight", c.head_dim, c.hidden_size, c.dense_format);
  add.Bf16(prefix + "kv_norm.weight", {c.head_dim});
  if (ratio == 4) {
    add.Matrix(prefix + "indexer.wq_b.weight", c.index_heads * c.index_head_dim, c.q_lora_rank,
               c.dense_format);
    add.Matrix(prefix + "indexer.weights_proj.weight", c.index_heads, c.hidden_size);
    AddCompressor(add, c, prefix + "indexer.compressor.", ratio, c.index_head_dim);
  }
  if (ratio != 0) AddCompressor(add, c, prefix + "compressor.", ratio, c.head_dim);
  // Widened to bf16 by the vendor: its inputs are never rounded.
  add.AddMatrix(prefix + "wo_a.weight", {.format = c.dense_format,
                                         .n = c.o_lora_rank,
                                         .k = c.heads_per_group() * c.head_dim,
                                         .groups = c.output_groups,
                                         .rounds_inputs = false});
  add.Matrix(prefix + "wo_b.weight", c.hidden_size, c.output_groups * c.o_lora_rank,
             c.dense_format);
}

void AddExpert(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix,
               WeightFormat format) {
  add.Matrix(prefix + "w1.weight", c.expert_width, c.hidden_size, format);
  add.Matrix(prefix + "w3.weight", c.expert_width, c.hidden_size, format);
  add.Matrix(prefix + "w2.weight", c.hidden_size, c.expert_width, format);
}

void AddFeedForward(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix,
                    bool hash_routing) {
  add.Matrix(prefix + "gate.weight", c.num_experts, c.hidden_size);
  if (hash_routing) {
    add.TokenTable(prefix + "gate.tid2eid", c.vocab_size, c.experts_per_token);
  } else {
    add.F32(prefix + "gate.bias", {c.num_experts});
  }
  for (int64_t expert = 0; expert < c.num_experts; ++expert) {
    AddExpert(add, c, prefix + "experts." + std::to_string(expert) + ".", c.expert_format);
  }
  AddExpert(add, c, prefix + "shared_experts.", c.dense_format);
}

}  // namespace

std::string TensorSpec::ShapeString() const {
  std::string text = std::string(Name(dtype)) + "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + "]";
}

std::string ScaleName(std::string_view matrix_name) {
  return std::string(matrix_name.substr(0, matrix_name.rfind('.'))) + ".scale";
}

std::vector<TensorSpec> TensorInventory(const ModelConfig& c) {
  std::vector<TensorSpec> specs;
  InventoryBuilder add(&specs);
  add.Bf16("embed.weight", {c.vocab_size, c.hidden_size});
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    AddHyperConnection(add, c, prefix + "hc_attn");
    add.Bf16(prefix + "attn_norm.weight", {c.hidden_size});
    AddAttention(add, c, prefix + "attn.", c.ratio(layer));
    AddHyperConnection(add, c, prefix + "hc_ffn");
    add.Bf16(prefix + "ffn_norm.weight", {c.hidden_size});
    AddFeedForward(add, c, prefix + "ffn.", c.uses_hash_routing(layer));
  }
  add.F32Matrix("hc_head_fn", c.num_streams, c.num_streams * c.hidden_size);
  add.F32("hc_head_base", {c.num_streams});
  add.F32("hc_head_scale", {1});
  add.Bf16("norm.weight", {c.hidden_size});
  add.Matrix("head.weight", c.vocab_size, c.hidden_size);
  return specs;
}

}  // namespace lodestone

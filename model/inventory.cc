#include "model/inventory.h"

#include <utility>

namespace lodestone {
namespace {

using Kind = TensorSpec::Kind;

// Appends specs under a name prefix.
class InventoryBuilder {
 public:
  explicit InventoryBuilder(std::vector<TensorSpec>* specs) : specs_(specs) {}

  void Matrix(const std::string& name, int64_t n, int64_t k, int64_t groups = 1) {
    Add(name, DType::kBf16, {n, k}, Kind::kMatrix, groups);
  }
  void F32Matrix(const std::string& name, int64_t n, int64_t k) {
    Add(name, DType::kF32, {n, k}, Kind::kMatrix, 1);
  }
  void Bf16(const std::string& name, std::vector<int64_t> shape) {
    Add(name, DType::kBf16, std::move(shape), Kind::kPlain, 1);
  }
  void F32(const std::string& name, std::vector<int64_t> shape) {
    Add(name, DType::kF32, std::move(shape), Kind::kPlain, 1);
  }
  void TokenTable(const std::string& name, int64_t rows, int64_t columns) {
    Add(name, DType::kI64, {rows, columns}, Kind::kTokenTable, 1);
  }

 private:
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, Kind kind,
           int64_t groups) {
    specs_->push_back({name, dtype, std::move(shape), kind, groups});
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
  add.Matrix(prefix + "wq_a.weight", c.q_lora_rank, c.hidden_size);
  add.Bf16(prefix + "q_norm.weight", {c.q_lora_rank});
  add.Matrix(prefix + "wq_b.weight", c.num_heads * c.head_dim, c.q_lora_rank);
  add.Matrix(prefix + "wkv.weight", c.head_dim, c.hidden_size);
  add.Bf16(prefix + "kv_norm.weight", {c.head_dim});
  if (ratio == 4) {
    add.Matrix(prefix + "indexer.wq_b.weight", c.index_heads * c.index_head_dim, c.q_lora_rank);
    add.Matrix(prefix + "indexer.weights_proj.weight", c.index_heads, c.hidden_size);
    AddCompressor(add, c, prefix + "indexer.compressor.", ratio, c.index_head_dim);
  }
  if (ratio != 0) AddCompressor(add, c, prefix + "compressor.", ratio, c.head_dim);
  add.Matrix(prefix + "wo_a.weight", c.output_groups * c.o_lora_rank,
             c.heads_per_group() * c.head_dim, c.output_groups);
  add.Matrix(prefix + "wo_b.weight", c.hidden_size, c.output_groups * c.o_lora_rank);
}

void AddExpert(InventoryBuilder& add, const ModelConfig& c, const std::string& prefix) {
  add.Matrix(prefix + "w1.weight", c.expert_width, c.hidden_size);
  add.Matrix(prefix + "w3.weight", c.expert_width, c.hidden_size);
  add.Matrix(prefix + "w2.weight", c.hidden_size, c.expert_width);
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
    AddExpert(add, c, prefix + "experts." + std::to_string(expert) + ".");
  }
  AddExpert(add, c, prefix + "shared_experts.");
}

}  // namespace

std::string TensorSpec::ShapeString() const {
  std::string text = std::string(Name(dtype)) + "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + "]";
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

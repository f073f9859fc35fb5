#include "model/activations.h"

#include <algorithm>
#include <initializer_list>

namespace lodestone {
namespace {

constexpr int64_t kAlignment = 64;

// Hands out consecutive, aligned pieces. Works on offsets, so a null base only counts.
class BumpAllocator {
 public:
  explicit BumpAllocator(std::byte* base) : base_(base) {}

  TensorView Take(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView view(nullptr, dtype, dims);
    const int64_t bytes = view.num_bytes();
    if (base_ != nullptr && bytes > 0) view.data = base_ + offset_;
    offset_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    largest_ = std::max(largest_, offset_);
    return view;
  }
  TensorView TakeBytes(int64_t bytes) { return Take(DType::kU8, {bytes}); }

  int64_t offset() const { return offset_; }
  void ReturnTo(int64_t offset) { offset_ = offset; }
  int64_t largest() const { return largest_; }

 private:
  std::byte* const base_;
  int64_t offset_ = 0;
  int64_t largest_ = 0;
};

struct Layout {
  const ModelConfig& config;
  const Ops& ops;
  const FormatChoice& formats;
  const DType act;
  const PassShape& shape;
  BumpAllocator& memory;
};

void LayOutStreams(const Layout& l, Activations& a) {
  const int64_t tokens = l.shape.num_tokens;
  const int64_t streams = l.config.num_streams;
  a.streams = l.memory.Take(l.act, {tokens, streams, l.config.hidden_size});
  a.x = l.memory.Take(l.act, {tokens, l.config.hidden_size});
  a.y = l.memory.Take(l.act, {tokens, l.config.hidden_size});
  a.post = l.memory.Take(DType::kF32, {tokens, streams});
  a.comb = l.memory.Take(DType::kF32, {tokens, streams, streams});
  a.hc_scratch = l.memory.TakeBytes(l.ops.HcPreScratchBytes(tokens, streams));
}

void LayOutIndexer(const Layout& l, Activations& a) {
  const ModelConfig& c = l.config;
  const int64_t tokens = l.shape.num_tokens;
  a.index_query = l.memory.Take(l.act, {tokens, c.index_heads, c.index_head_dim});
  a.index_raw_weight = l.memory.Take(l.act, {tokens, c.index_heads});
  a.index_pool_kv = l.memory.Take(DType::kF32, {tokens, 2 * c.index_head_dim});
  a.index_pool_score = l.memory.Take(DType::kF32, {tokens, 2 * c.index_head_dim});
  a.index_weight = l.memory.Take(DType::kF32, {tokens, c.index_heads});
  a.top_entries = l.memory.Take(DType::kI32, {tokens, c.index_top_k});
  a.index_scratch =
      l.memory.TakeBytes(l.ops.IndexTopKScratchBytes(tokens, l.shape.max_visible_indexed));
  if (l.shape.index_scores && l.shape.max_visible_indexed > 0) {
    a.index_scores = l.memory.Take(DType::kF32, {tokens, l.shape.max_visible_indexed});
  }
}

void LayOutAttention(const Layout& l, Activations& a) {
  const ModelConfig& c = l.config;
  const int64_t tokens = l.shape.num_tokens;
  const int64_t compressed_keys = std::max(c.index_top_k, l.shape.max_visible_dense);
  const bool rounds = RoundsProductInputs(l.formats.numerics) && IsQuantised(c.dense_format);
  a.linear_scratch = l.memory.TakeBytes(l.ops.LinearScratchBytes(
      tokens, std::max({c.hidden_size, c.q_lora_rank, c.output_groups * c.o_lora_rank}), rounds));
  a.query_low_rank = l.memory.Take(l.act, {tokens, c.q_lora_rank});
  a.query = l.memory.Take(l.act, {tokens, c.num_heads, c.head_dim});
  a.window_kv = l.memory.Take(l.act, {tokens, c.head_dim});
  a.latents = l.memory.Take(l.act, {tokens, c.head_dim});
  a.pool_kv = l.memory.Take(DType::kF32, {tokens, 2 * c.head_dim});
  a.pool_score = l.memory.Take(DType::kF32, {tokens, 2 * c.head_dim});
  LayOutIndexer(l, a);
  a.attention_scratch = l.memory.TakeBytes(l.ops.SparseAttentionScratchBytes(
      c.window + compressed_keys, c.num_heads, c.head_dim, l.formats.kv));
  a.attention_out = l.memory.Take(l.act, {tokens, c.num_heads, c.head_dim});
  a.output_low_rank = l.memory.Take(l.act, {tokens, c.output_groups * c.o_lora_rank});
}

void LayOutFeedForward(const Layout& l, Activations& a) {
  const ModelConfig& c = l.config;
  const int64_t tokens = l.shape.num_tokens;
  a.experts = l.memory.Take(DType::kI32, {tokens, c.experts_per_token});
  a.expert_weights = l.memory.Take(DType::kF32, {tokens, c.experts_per_token});
  a.moe_scratch = l.memory.TakeBytes(l.ops.MoeExpertsScratchBytes(
      tokens, c.experts_per_token, c.hidden_size, c.expert_width, c.num_experts));
}

}  // namespace

Activations LayOutActivations(const ModelConfig& config, const Ops& ops,
                              const FormatChoice& formats, const PassShape& shape,
                              std::byte* workspace) {
  Activations activations;
  BumpAllocator memory(workspace);
  const Layout layout{config, ops, formats, formats.activation(), shape, memory};
  LayOutStreams(layout, activations);
  const int64_t shared = memory.offset();
  LayOutAttention(layout, activations);
  memory.ReturnTo(shared);
  LayOutFeedForward(layout, activations);
  memory.ReturnTo(shared);
  activations.head_x =
      memory.Take(formats.activation(), {shape.num_logit_rows, config.hidden_size});
  activations.num_bytes = memory.largest();
  return activations;
}

}  // namespace lodestone

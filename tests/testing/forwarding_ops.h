#pragma once

#include <string_view>

#include "kernels/ops.h"

namespace lodestone {

// Hands every op on to another backend; tests override the one that they watch or spoil.
class ForwardingOps : public Ops {
 public:
  // Not owned; must outlive this.
  explicit ForwardingOps(const Ops& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  int64_t PackedBytes(const MatrixSpec& spec) const override { return inner_.PackedBytes(spec); }
  PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const override {
    return inner_.PackWeight(source, packed);
  }
  void EmbedTokens(const EmbedTokensParams& params, Stream& stream) const override {
    inner_.EmbedTokens(params, stream);
  }
  int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) const override {
    return inner_.HcPreScratchBytes(num_tokens, num_streams);
  }
  void HcPre(const HcPreParams& params, Stream& stream) const override {
    inner_.HcPre(params, stream);
  }
  void HcPost(const HcPostParams& params, Stream& stream) const override {
    inner_.HcPost(params, stream);
  }
  void HcHead(const HcHeadParams& params, Stream& stream) const override {
    inner_.HcHead(params, stream);
  }
  int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) const override {
    return inner_.LinearScratchBytes(num_tokens, k, round_fp8);
  }
  void Linear(const LinearParams& params, Stream& stream) const override {
    inner_.Linear(params, stream);
  }
  void RmsNorm(const RmsNormParams& params, Stream& stream) const override {
    inner_.RmsNorm(params, stream);
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const override {
    inner_.QueryNormRope(params, stream);
  }
  void WindowLatent(const WindowLatentParams& params, Stream& stream) const override {
    inner_.WindowLatent(params, stream);
  }
  void StoreWindow(const StoreWindowParams& params, Stream& stream) const override {
    inner_.StoreWindow(params, stream);
  }
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    inner_.CompressKv(params, stream);
  }
  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override {
    inner_.IndexQuery(params, stream);
  }
  int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) const override {
    return inner_.IndexTopKScratchBytes(num_tokens, max_visible);
  }
  void IndexTopK(const IndexTopKParams& params, Stream& stream) const override {
    inner_.IndexTopK(params, stream);
  }
  int64_t SparseAttentionScratchBytes(int64_t max_keys, int64_t num_heads, int64_t head_dim,
                                      KvFormat format) const override {
    return inner_.SparseAttentionScratchBytes(max_keys, num_heads, head_dim, format);
  }
  void SparseAttention(const SparseAttentionParams& params, Stream& stream) const override {
    inner_.SparseAttention(params, stream);
  }
  void MoeRoute(const MoeRouteParams& params, Stream& stream) const override {
    inner_.MoeRoute(params, stream);
  }
  int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                                 int64_t width, int64_t num_experts) const override {
    return inner_.MoeExpertsScratchBytes(num_tokens, experts_per_token, hidden, width, num_experts);
  }
  void MoeExperts(const MoeExpertsParams& params, Stream& stream) const override {
    inner_.MoeExperts(params, stream);
  }
  void PackRows(const MoveRowsParams& params, Stream& stream) const override {
    inner_.PackRows(params, stream);
  }
  void ScatterRows(const MoveRowsParams& params, Stream& stream) const override {
    inner_.ScatterRows(params, stream);
  }

 protected:
  const Ops& inner_;
};

}  // namespace lodestone

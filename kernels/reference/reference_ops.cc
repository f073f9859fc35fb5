#include "kernels/reference/reference_ops.h"

#include <cstring>

#include "kernels/op_checks.h"
#include "kernels/ops.h"

namespace lodestone {
namespace {

// Checks, then calls the plain function. Ops run in place; no op needs scratch.
class ReferenceOps final : public Ops {
 public:
  std::string_view name() const override { return "reference"; }

  int64_t PackedBytes(const MatrixSpec& spec) const override;
  PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const override;

  void EmbedTokens(const EmbedTokensParams& params, Stream&) const override {
    CheckEmbedTokens(params);
    reference::EmbedTokens(params);
  }
  int64_t HcPreScratchBytes(int64_t, int64_t) const override { return 0; }
  void HcPre(const HcPreParams& params, Stream&) const override {
    CheckHcPre(params, 0);
    reference::HcPre(params);
  }
  void HcPost(const HcPostParams& params, Stream&) const override {
    CheckHcPost(params);
    reference::HcPost(params);
  }
  void HcHead(const HcHeadParams& params, Stream&) const override {
    CheckHcHead(params);
    reference::HcHead(params);
  }
  int64_t LinearScratchBytes(int64_t, int64_t, bool) const override { return 0; }
  void Linear(const LinearParams& params, Stream&) const override {
    CheckLinear(params);
    reference::Linear(params);
  }
  void RmsNorm(const RmsNormParams& params, Stream&) const override {
    CheckRmsNorm(params);
    reference::RmsNorm(params);
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream&) const override {
    CheckQueryNormRope(params);
    reference::QueryNormRope(params);
  }
  void WindowLatent(const WindowLatentParams& params, Stream&) const override {
    CheckWindowLatent(params);
    reference::WindowLatent(params);
  }
  void StoreWindow(const StoreWindowParams& params, Stream&) const override {
    CheckStoreWindow(params);
    reference::StoreWindow(params);
  }
  void CompressKv(const CompressKvParams& params, Stream&) const override {
    CheckCompressKv(params);
    reference::CompressKv(params);
  }
  void IndexQuery(const IndexQueryParams& params, Stream&) const override {
    CheckIndexQuery(params);
    reference::IndexQuery(params);
  }
  int64_t IndexTopKScratchBytes(int64_t, int64_t) const override { return 0; }
  void IndexTopK(const IndexTopKParams& params, Stream&) const override {
    CheckIndexTopK(params);
    reference::IndexTopK(params);
  }
  int64_t SparseAttentionScratchBytes(int64_t, int64_t, int64_t, KvFormat) const override {
    return 0;
  }
  void SparseAttention(const SparseAttentionParams& params, Stream&) const override {
    CheckSparseAttention(params);
    reference::SparseAttention(params);
  }
  void MoeRoute(const MoeRouteParams& params, Stream&) const override {
    CheckMoeRoute(params);
    reference::MoeRoute(params);
  }
  int64_t MoeExpertsScratchBytes(int64_t, int64_t, int64_t, int64_t, int64_t) const override {
    return 0;
  }
  void MoeExperts(const MoeExpertsParams& params, Stream&) const override {
    CheckMoeExperts(params, 0);
    reference::MoeExperts(params);
  }
  void PackRows(const MoveRowsParams& params, Stream&) const override {
    CheckMoveRows(params);
    reference::PackRows(params);
  }
  void ScatterRows(const MoveRowsParams& params, Stream&) const override {
    CheckMoveRows(params);
    reference::ScatterRows(params);
  }
};

int64_t ReferenceOps::PackedBytes(const MatrixSpec& spec) const {
  return StoredWeightBytes(spec.format, spec.groups * spec.n, spec.k);
}

// The packed form is the row-major matrix itself, then its scales.
PackedWeight ReferenceOps::PackWeight(const MatrixSource& source, const TensorView& packed) const {
  CheckMatrixSource(source, packed, PackedBytes(source.spec));
  std::byte* out = packed.as<std::byte>();
  const auto append = [&out](const TensorView& view) {
    const int64_t element = BytesPerElement(view.dtype);
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      std::memcpy(out, view.as<std::byte>() + i * view.strides[0] * element,
                  static_cast<size_t>(view.shape[1] * element));
      out += view.shape[1] * element;
    }
  };
  append(source.values);
  if (IsQuantised(source.spec.format)) append(source.scales);
  return {source.spec, packed};
}

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace lodestone

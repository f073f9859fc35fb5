#include "kernels/reference/reference_ops.h"

#include <cstring>

#include "base/logging.h"
#include "kernels/op_checks.h"
#include "kernels/ops.h"

namespace lodestone {
namespace {

// Checks, then calls the plain function. Ops run in place; no op needs scratch.
class ReferenceOps final : public Ops {
 public:
  std::string_view name() const override { return "reference"; }

  int64_t PackedBytes(DType dtype, int64_t n, int64_t k, int64_t groups) const override {
    return groups * n * k * BytesPerElement(dtype);
  }
  PackedWeight PackWeight(const TensorView& source, int64_t groups,
                          const TensorView& packed) const override;

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

// The packed form is the row-major matrix itself.
PackedWeight ReferenceOps::PackWeight(const TensorView& source, int64_t groups,
                                      const TensorView& packed) const {
  CHECK(source.rank == 2 && groups >= 1 && source.shape[0] % groups == 0)
      << "PackWeight: source is " << source.ShapeString() << " in " << groups << " groups";
  CHECK(source.dtype == DType::kBf16 || source.dtype == DType::kF32)
      << "PackWeight: source is " << source.ShapeString() << ", want BF16 or F32";
  const int64_t rows = source.shape[0];
  const int64_t k = source.shape[1];
  const int64_t row_bytes = k * BytesPerElement(source.dtype);
  CHECK(packed.num_bytes() >= rows * row_bytes)
      << "PackWeight: packed has " << packed.num_bytes() << " bytes, want " << rows * row_bytes;
  for (int64_t i = 0; i < rows; ++i) {
    const std::byte* row =
        source.as<std::byte>() + i * source.strides[0] * BytesPerElement(source.dtype);
    std::memcpy(packed.as<std::byte>() + i * row_bytes, row, static_cast<size_t>(row_bytes));
  }
  return {.data = TensorView(packed.data, source.dtype, {rows, k}),
          .n = rows / groups,
          .k = k,
          .groups = groups,
          .dtype = source.dtype};
}

}  // namespace

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

}  // namespace lodestone

#include "kernels/cpu/cpu_ops.h"

#include <algorithm>

#include "base/logging.h"
#include "kernels/op_checks.h"

namespace lodestone {
namespace {

// Checks, then calls the function of the op.
class CpuOps final : public Ops {
 public:
  CpuOps(int num_threads, CpuIsa isa)
      : context_{SimdTableOf(isa), num_threads},
        name_(isa == CpuIsa::kAvx512 ? "avx512" : "avx2") {}

  std::string_view name() const override { return name_; }

  int64_t PackedBytes(const MatrixSpec& spec) const override { return cpu::PackedBytes(spec); }
  PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const override {
    return cpu::PackWeight(source, packed);
  }
  void EmbedTokens(const EmbedTokensParams& params, Stream& stream) const override {
    CheckEmbedTokens(params);
    cpu::EmbedTokens(context_, params, stream.pool());
  }
  int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) const override {
    return cpu::HcPreScratchBytes(num_tokens, num_streams);
  }
  void HcPre(const HcPreParams& params, Stream& stream) const override {
    CheckHcPre(params, cpu::HcPreScratchBytes(params.streams.shape[0], params.streams.shape[1]));
    cpu::HcPre(context_, params, stream.pool());
  }
  void HcPost(const HcPostParams& params, Stream& stream) const override {
    CheckHcPost(params);
    cpu::HcPost(context_, params, stream.pool());
  }
  void HcHead(const HcHeadParams& params, Stream&) const override {
    CheckHcHead(params);
    cpu::HcHead(context_, params);
  }
  int64_t LinearScratchBytes(int64_t, int64_t, bool) const override { return 0; }
  void Linear(const LinearParams& params, Stream& stream) const override {
    CheckLinear(params);
    cpu::Linear(context_, params, stream.pool());
  }
  void RmsNorm(const RmsNormParams& params, Stream& stream) const override {
    CheckRmsNorm(params);
    cpu::RmsNorm(context_, params, stream.pool());
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const override {
    CheckQueryNormRope(params);
    cpu::QueryNormRope(context_, params, stream.pool());
  }
  void WindowLatent(const WindowLatentParams& params, Stream& stream) const override {
    CheckWindowLatent(params);
    cpu::WindowLatent(context_, params, stream.pool());
  }
  void StoreWindow(const StoreWindowParams& params, Stream& stream) const override {
    CheckStoreWindow(params);
    cpu::StoreWindow(context_, params, stream.pool());
  }
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    CheckCompressKv(params);
    cpu::CompressKv(context_, params, stream.pool());
  }
  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override {
    CheckIndexQuery(params);
    cpu::IndexQuery(context_, params, stream.pool());
  }
  int64_t IndexTopKScratchBytes(int64_t, int64_t) const override {
    return cpu::IndexTopKScratchBytes(context_);
  }
  void IndexTopK(const IndexTopKParams& params, Stream& stream) const override {
    CheckIndexTopK(params);
    cpu::IndexTopK(context_, params, stream.pool());
  }
  int64_t SparseAttentionScratchBytes(int64_t max_keys, int64_t, int64_t head_dim,
                                      KvFormat format) const override {
    return cpu::SparseAttentionScratchBytes(context_, max_keys, head_dim, format);
  }
  void SparseAttention(const SparseAttentionParams& params, Stream& stream) const override {
    CheckSparseAttention(params);
    cpu::SparseAttention(context_, params, stream.pool());
  }
  void MoeRoute(const MoeRouteParams& params, Stream& stream) const override {
    CheckMoeRoute(params);
    cpu::MoeRoute(context_, params, stream.pool());
  }
  int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                                 int64_t width, int64_t num_experts) const override {
    return cpu::MoeExpertsScratchBytes(num_tokens, experts_per_token, hidden, width, num_experts);
  }
  void MoeExperts(const MoeExpertsParams& params, Stream& stream) const override {
    CheckMoeExperts(params, cpu::MoeExpertsScratchBytes(
                                params.x.shape[0], params.experts.shape[1], params.x.shape[1],
                                params.routed.empty() ? 0 : params.routed[0].w1.n,
                                static_cast<int64_t>(params.routed.size())));
    cpu::MoeExperts(context_, params, stream.pool());
  }
  void PackRows(const MoveRowsParams& params, Stream& stream) const override {
    CheckMoveRows(params);
    cpu::PackRows(params, stream.pool());
  }
  void ScatterRows(const MoveRowsParams& params, Stream& stream) const override {
    CheckMoveRows(params);
    cpu::ScatterRows(params, stream.pool());
  }

 private:
  const cpu::Context context_;
  const std::string_view name_;
};

}  // namespace

bool CpuHas(CpuIsa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (isa == CpuIsa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const cpu::SimdTable& SimdTableOf(CpuIsa isa) {
  return isa == CpuIsa::kAvx512 ? avx512::kTable : avx2::kTable;
}

std::unique_ptr<Ops> MakeCpuOps(int num_threads, CpuIsa isa) {
  CHECK(CpuHas(CpuIsa::kAvx2)) << "this processor lacks "
                               << (__builtin_cpu_supports("avx2") ? "FMA or F16C" : "AVX2")
                               << ", which the CPU ops need";
  CHECK(CpuHas(isa)) << "this processor lacks AVX-512 F, BW, VL or DQ";
  return std::make_unique<CpuOps>(std::max(num_threads, 1), isa);
}

bool CpuOpsSupported() { return CpuHas(CpuIsa::kAvx2); }

std::unique_ptr<Ops> MakeCpuOps(int num_threads) {
  return MakeCpuOps(num_threads, CpuHas(CpuIsa::kAvx512) ? CpuIsa::kAvx512 : CpuIsa::kAvx2);
}

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/op_params.h"
#include "runtime/stream.h"

namespace lodestone {

// The backend line: every op of the model, fused as far as a production kernel would fuse it.
// Implementations: kernels/reference (plain loops, f64 sums: the specification, tests only),
// kernels/cpu (SIMD and threads). Ops queue on the stream, never allocate, synchronise or read
// configuration; wrong shapes are programmer errors and end the process (kernels/op_checks.h).
// Thread-safe in the sense that two streams may call it at once.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;

  // Bytes of a matrix as this backend keeps it, scales included, and the conversion from the
  // checkpoint's row-major tensors. `packed` views PackedBytes bytes (u8), 64-byte aligned.
  virtual int64_t PackedBytes(const MatrixSpec& spec) const = 0;
  virtual PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const = 0;

  virtual void EmbedTokens(const EmbedTokensParams& params, Stream& stream) const = 0;
  virtual int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) const = 0;
  virtual void HcPre(const HcPreParams& params, Stream& stream) const = 0;
  virtual void HcPost(const HcPostParams& params, Stream& stream) const = 0;
  // By default the two ops after each other.
  virtual void HcBoundary(const HcBoundaryParams& params, Stream& stream) const {
    HcPost(params.post, stream);
    HcPre(params.pre, stream);
  }
  virtual void HcHead(const HcHeadParams& params, Stream& stream) const = 0;
  virtual int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) const = 0;
  virtual void Linear(const LinearParams& params, Stream& stream) const = 0;
  virtual void RmsNorm(const RmsNormParams& params, Stream& stream) const = 0;
  virtual void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const = 0;
  virtual void WindowLatent(const WindowLatentParams& params, Stream& stream) const = 0;
  virtual void StoreWindow(const StoreWindowParams& params, Stream& stream) const = 0;
  virtual void CompressKv(const CompressKvParams& params, Stream& stream) const = 0;
  virtual void IndexQuery(const IndexQueryParams& params, Stream& stream) const = 0;
  // By default one op after the other.
  virtual void AttentionRows(const AttentionRowsParams& params, Stream& stream) const {
    RmsNorm(params.query, stream);
    WindowLatent(params.window, stream);
    if (!params.index_keys.kv.empty()) CompressKv(params.index_keys, stream);
    if (!params.entries.kv.empty()) CompressKv(params.entries, stream);
    if (!params.ring.latents.empty()) StoreWindow(params.ring, stream);
  }
  virtual void QueryRows(const QueryRowsParams& params, Stream& stream) const {
    QueryNormRope(params.query, stream);
    IndexQuery(params.index, stream);
  }
  virtual int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) const = 0;
  virtual void IndexTopK(const IndexTopKParams& params, Stream& stream) const = 0;
  virtual int64_t SparseAttentionScratchBytes(int64_t max_keys, int64_t num_heads, int64_t head_dim,
                                              KvFormat format) const = 0;
  virtual void SparseAttention(const SparseAttentionParams& params, Stream& stream) const = 0;
  virtual void MoeRoute(const MoeRouteParams& params, Stream& stream) const = 0;
  virtual int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token,
                                         int64_t hidden, int64_t width,
                                         int64_t num_experts) const = 0;
  virtual void MoeExperts(const MoeExpertsParams& params, Stream& stream) const = 0;
  virtual void PackRows(const MoveRowsParams& params, Stream& stream) const = 0;
  virtual void ScatterRows(const MoveRowsParams& params, Stream& stream) const = 0;
};

std::unique_ptr<Ops> MakeReferenceOps();
// `num_threads` sizes per-thread scratch. UNAVAILABLE is fatal at start: needs AVX2 and FMA; the
// message names what the processor lacks. REQUIRES: CpuOpsSupported().
bool CpuOpsSupported();
std::unique_ptr<Ops> MakeCpuOps(int num_threads);

}  // namespace lodestone

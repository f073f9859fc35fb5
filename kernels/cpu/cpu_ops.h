#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/simd_table.h"
#include "kernels/ops.h"

// The CPU backend: each op splits its work into tasks for the stream's pool and calls the
// arithmetic of one instruction set (simd_table.h). Results are the same to the bit for any number
// of threads, any split of the batch and either instruction set.
namespace lodestone {

enum class CpuIsa { kAvx2, kAvx512 };

// Whether this processor has all that `isa` needs.
bool CpuHas(CpuIsa isa);
// MakeCpuOps (kernels/ops.h) with a chosen instruction set, for tests and benchmarks.
// REQUIRES: CpuHas(isa).
std::unique_ptr<Ops> MakeCpuOps(int num_threads, CpuIsa isa);
const cpu::SimdTable& SimdTableOf(CpuIsa isa);

namespace cpu {

// What an op needs besides its params and the pool.
struct Context {
  const SimdTable& simd;
  int num_lanes;  // tasks that use per-lane scratch at once
};

// One function per op; shapes have been checked. One file per family.
void EmbedTokens(const Context& context, const EmbedTokensParams& params, ThreadPool& pool);
int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams);
void HcPre(const Context& context, const HcPreParams& params, ThreadPool& pool);
void HcPost(const Context& context, const HcPostParams& params, ThreadPool& pool);
void HcHead(const Context& context, const HcHeadParams& params);
int64_t PackedBytes(const MatrixSpec& spec);
PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed);
void Linear(const Context& context, const LinearParams& params, ThreadPool& pool);
void RmsNorm(const Context& context, const RmsNormParams& params, ThreadPool& pool);
void QueryNormRope(const Context& context, const QueryNormRopeParams& params, ThreadPool& pool);
void WindowLatent(const Context& context, const WindowLatentParams& params, ThreadPool& pool);
void StoreWindow(const Context& context, const StoreWindowParams& params, ThreadPool& pool);
void CompressKv(const Context& context, const CompressKvParams& params, ThreadPool& pool);
void IndexQuery(const Context& context, const IndexQueryParams& params, ThreadPool& pool);
int64_t IndexTopKScratchBytes(const Context& context);
void IndexTopK(const Context& context, const IndexTopKParams& params, ThreadPool& pool);
int64_t SparseAttentionScratchBytes(const Context& context, int64_t max_keys, int64_t head_dim,
                                    KvFormat format);
void SparseAttention(const Context& context, const SparseAttentionParams& params, ThreadPool& pool);
void MoeRoute(const Context& context, const MoeRouteParams& params, ThreadPool& pool);
int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                               int64_t width, int64_t num_experts);
void MoeExperts(const Context& context, const MoeExpertsParams& params, ThreadPool& pool);
void PackRows(const MoveRowsParams& params, ThreadPool& pool);
void ScatterRows(const MoveRowsParams& params, ThreadPool& pool);

}  // namespace cpu
}  // namespace lodestone

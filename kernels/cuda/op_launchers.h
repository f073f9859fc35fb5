#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/op_params.h"

// Host launchers of the ops that have no struct of their own in launchers.h: each takes the op's
// params (kernels/op_params.h) with all tensors in device memory, checked before, activations bf16.
// They queue on `stream` and neither allocate nor synchronise; a failed launch ends the process.
namespace lodestone::cuda {

// Whether this binary has code for the current device.
bool HasKernelsForCurrentDevice();

void LaunchEmbedTokens(const EmbedTokensParams& params, cudaStream_t stream);

int64_t HcPreScratchBytes(int64_t num_tokens);
void LaunchHcPre(const HcPreParams& params, cudaStream_t stream);
void LaunchHcBoundary(const HcBoundaryParams& params, cudaStream_t stream);
void LaunchHcPost(const HcPostParams& params, cudaStream_t stream);
void LaunchHcHead(const HcHeadParams& params, cudaStream_t stream);

void LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);
void LaunchQueryNormRope(const QueryNormRopeParams& params, cudaStream_t stream);
void LaunchWindowLatent(const WindowLatentParams& params, cudaStream_t stream);
void LaunchStoreWindow(const StoreWindowParams& params, cudaStream_t stream);
void LaunchCompressKv(const CompressKvParams& params, cudaStream_t stream);
// REQUIRES: every sequence has one token, and `ring` is given.
void LaunchAttentionRows(const AttentionRowsParams& params, cudaStream_t stream);
void LaunchQueryRows(const QueryRowsParams& params, cudaStream_t stream);
void LaunchIndexQuery(const IndexQueryParams& params, cudaStream_t stream);

// Of `k` inputs in all, those of every group: for rounded ones (`round_fp8`), without which there
// is no product, or for ordered ones of many tokens (gemm.h), without which it is slower.
int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8);
// Whether LaunchLinear rounds the inputs to FP8 first, into scratch.
bool RoundsInputs(const LinearParams& params);
void LaunchLinear(const LinearParams& params, cudaStream_t stream);
void LaunchMoeRoute(const MoeRouteParams& params, cudaStream_t stream);
int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                               int64_t width, int64_t num_experts);
void LaunchMoeExperts(const MoeExpertsParams& params, cudaStream_t stream);

// `digests` is device memory, the slot device or pinned memory.
void LaunchPackRows(const MoveRowsParams& params, cudaStream_t stream);
void LaunchScatterRows(const MoveRowsParams& params, cudaStream_t stream);

}  // namespace lodestone::cuda

#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/launchers.h"

// The paths behind LaunchSparseAttention. `scale` turns products of queries and keys into scores in
// units of log2.
namespace lodestone::cuda {

// d and r_d of the paths on the tensor cores.
inline constexpr int kAttentionDims = 512;
inline constexpr int kAttentionRopeDims = 64;
inline constexpr int64_t kMaxDecodeTokens = 256;  // of one launch; more are taken for prefill

// Any shape with d <= 1024; ends the process for others and for fp32 latents.
void LaunchSparseAttentionPortable(const SparseAttentionArgs& args, cudaStream_t stream);

// Writes `out`, or with several splits their partial results to scratch. REQUIRES: a split has
// 1,152 keys at most.
void LaunchSparseAttentionBlocks(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 float scale, cudaStream_t stream);
// The same with one split of any length. For many tokens.
void LaunchSparseAttentionPrefill(const SparseAttentionArgs& args, float scale,
                                  cudaStream_t stream);
// `out` of these partial results.
void LaunchJoinSplits(const SparseAttentionArgs& args, int splits, cudaStream_t stream);

// Clusters of 8 or 16 blocks, but not of 16 for 16 heads. REQUIRES: max_keys <= 64 *
// MaxClusterSteps(shape).
void LaunchSparseAttentionCluster(const SparseAttentionArgs& args, const ClusterShape& shape,
                                  float scale, cudaStream_t stream);
// Clusters of 16 blocks for 16 heads. REQUIRES: max_keys <= 1024.
void LaunchSparseAttentionToken(const SparseAttentionArgs& args, float scale, cudaStream_t stream);
// Clusters of 2 or 4 blocks, of 64 heads.
void LaunchSparseAttentionRelay(const SparseAttentionArgs& args, int cluster_blocks, float scale,
                                cudaStream_t stream);
// How many the current device runs at once.
int CountClusters16();
int CountClusters8();
int CountRelays(int cluster_blocks);

// bf16 [T, H, 512] in device memory, boxes of 64 dims x box_heads heads, swizzled like a row tile
// of device/wgmma.cuh.
CUtensorMap MakeHeadMap(const SparseAttentionArgs& args, const void* data, int box_heads);
// The queries, boxes {0, head, 0, token} of box_heads heads as [8 slices of 64 dims][box_heads]
// rows, swizzled like a row tile of device/wgmma.cuh.
CUtensorMap MakeQueryMap(const SparseAttentionArgs& args, int box_heads);

// Partial results of the splits: unnormalised sums, and (reference in units of log2, sum of
// probabilities); the sum is 0 where the split has no keys.
struct PartialView {
  float* sums;    // [T, splits, H, d]
  float2* stats;  // [T, splits, H]
};
__host__ __device__ inline PartialView PartialOf(const SparseAttentionArgs& args, int splits) {
  const int64_t rows = args.num_tokens * args.num_heads * splits;
  float* const sums = static_cast<float*>(args.scratch);
  return {sums, reinterpret_cast<float2*>(sums + (rows * args.head_dim + 63) / 64 * 64)};
}

}  // namespace lodestone::cuda

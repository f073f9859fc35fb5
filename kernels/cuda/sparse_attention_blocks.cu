// Sparse attention on the tensor cores (sm_90a): SparseAttentionParams in kernels/op_params.h. For
// bf16 latents of 512 dims, 64 of them rotary; decode, and prefill with several splits.
//
// Thread blocks stay and take items in turn; an item is one token, 64 heads, one split of its keys,
// 64 keys a step. Four warpgroups: the first keeps the queries in registers and computes scores and
// probabilities; the second and third add up the dims 0..255 and 256..511 of the output; the fourth
// loads, a ring of three stages ahead: three warps gather keys row by row, one lists the rows of
// the next item's keys. Keys serve as K and, read by their columns, as V. Queries pass through the
// ring like a step of keys. With several splits a second kernel joins them and adds the sink. In
// decode the older rows of the first items' windows are loaded before the kernel ahead ends, and
// their queries asked for at once when it has.
//
// Bound: 1,024 bytes a key and 128 KiB of queries and outputs a token. Measured on an H200 with 64
// heads and 640 keys: 0.81 of it for 128 tokens.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/attention_load.cuh"
#include "kernels/cuda/device/attention_score.cuh"
#include "kernels/cuda/device/attention_sum.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sparse_attention.h"

namespace lodestone::cuda {
namespace {

using Tile = AttentionTile;

// By one thread.
__device__ void InitBarriers(AttentionShared& shared) {
  for (int i = 0; i < Tile::kStages; ++i) {
    BarrierInit(&shared.full[i], 32 * Tile::kGatherWarps);
    BarrierInit(&shared.empty[i], kComputeThreads);
  }
  for (int i = 0; i < 2; ++i) {
    BarrierInit(&shared.keys_found[i], 1);
    BarrierInit(&shared.list_full[i], kComputeThreads + 32);
    BarrierInit(&shared.list_empty[i], kComputeThreads + 32 * Tile::kGatherWarps);
  }
  BarrierInitFence();
}

// `kOneSplit`: split.splits is 1, and what several need is left out.
template <bool kOneSplit>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    SparseAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                          const __grid_constant__ AttentionSplits splits,
                          const __grid_constant__ CUtensorMap query_map, AttentionPolicies policy,
                          float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<AttentionShared*>(smem);
  AllowNextKernel();
  const AttentionSplits split = kOneSplit ? AttentionSplits{.splits = 1} : splits;
  const AttentionItem first = ItemOf(args, split.splits, static_cast<int>(blockIdx.x));
  const TokenKeys keys = FindKeys(args, first.token);  // no kernel writes what is read here
  if (threadIdx.x == 0) {
    PrefetchMap(&query_map);
    InitBarriers(shared);
    shared.lists[0].keys = keys;
    shared.lists[0].num_chosen = 0;
  }
  TouchPages<Tile::kThreads>(args, keys);
  __syncthreads();
  if (threadIdx.x < kComputeThreads) {
    WaitForPreviousKernel();
    ListFirstItem(args, split, first, keys, shared.lists[0], &shared.list_full[0]);
  }
  switch (threadIdx.x / Tile::kGroupThreads) {
    case 0:
      GrowRegisters<Tile::kScoreRegisters>();
      ScoreItems(args, split, scale, shared);
      break;
    case 1:
    case 2:
      GrowRegisters<Tile::kValueRegisters>();
      SumItems(args, split, shared);
      break;
    default:
      ShrinkRegisters<Tile::kLoadRegisters>();
      if (const int warp = threadIdx.x % Tile::kGroupThreads / 32; warp < Tile::kGatherWarps) {
        GatherItems(args, split, query_map, policy, shared);
      } else {
        BeginFirstItem(args, split, query_map, policy, shared);
        ListItems(args, split, shared);
      }
  }
#endif
}

}  // namespace

void LaunchSparseAttentionBlocks(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 float scale, cudaStream_t stream) {
  RequireArgument(
      std::min<int64_t>(args.max_keys, split.steps_per_split * Tile::kKeys) <= kMaxItemEntries,
      "LaunchSparseAttention", "a split has more than 1152 keys", args.max_keys);
  constexpr int kSharedBytes = static_cast<int>(sizeof(AttentionShared));
  const auto kernel =
      split.splits == 1 ? SparseAttentionKernel<true> : SparseAttentionKernel<false>;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int64_t items = args.num_tokens * HeadGroups(args) * split.splits;
  // Tokens of one prompt share keys; those of a decode step do not. Measured on an H200: 2 % of the
  // time in prefill, 8 % in decode.
  const AttentionPolicies policy =
      args.num_tokens > kMaxDecodeTokens
          ? AttentionPolicies{.keys = kEvictLast, .queries = kEvictFirst}
          : AttentionPolicies{.keys = kEvictFirst, .queries = kEvictNormal};
  LaunchOverlapped(kernel,
                   {.blocks = std::min<int64_t>(items, CurrentDevice().processors),
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes},
                   stream, args, split, MakeQueryMap(args, Tile::kHeads), policy, scale);
}

}  // namespace lodestone::cuda

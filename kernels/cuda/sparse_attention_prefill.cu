// Sparse attention of many tokens on the tensor cores (sm_90a): SparseAttentionParams in
// kernels/op_params.h. For bf16 latents of 512 dims; the same bits as sparse_attention_blocks.cu
// with one split.
//
// Thread blocks stay and take items in turn; an item is one token and 64 heads, 64 keys a step.
// What remains behind equal numbers of items goes to the blocks that are first: the processors'
// clocks differ by 3 %.
//
// Four warpgroups: the first keeps the queries in registers and computes scores and probabilities;
// the second and third add up the dims 0..255 and 256..511 of the output; the fourth loads: one
// warp finds rows two steps ahead, three gather them into a ring of three stages. Keys serve as K
// and, read by their columns, as V.
//
// Bound by products: 131,072 FLOP a key at 64 heads; the gather takes three quarters as long.
// Measured on three H200 with 64 heads: 0.76 to 0.78 of the bound with 640 keys, 0.81 to 0.83 with
// 1,152 (docs/benchmarks.md says where the time goes).

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/prefill_load.cuh"
#include "kernels/cuda/device/prefill_score.cuh"
#include "kernels/cuda/device/prefill_sum.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sparse_attention.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/ticket_word.h"

namespace lodestone::cuda {
namespace {

using Tile = PrefillTile;

// Count the items dealt, one word a stream (TicketWord).
__device__ uint32_t ticket_words[kTicketWords];

// By one thread.
__device__ void InitBarriers(PrefillShared& shared) {
  constexpr int kGatherThreads = 32 * Tile::kGatherWarps;
  for (int i = 0; i < Tile::kStages; ++i) {
    BarrierInit(&shared.full[i], kGatherThreads + 1);
    BarrierInit(&shared.empty[i], kPrefillComputeThreads);
  }
  for (int i = 0; i < Tile::kListSteps; ++i) {
    BarrierInit(&shared.list_full[i], 32);
    BarrierInit(&shared.list_empty[i], kGatherThreads);
  }
  for (int i = 0; i < 2; ++i) {
    BarrierInit(&shared.angles_full[i], 32);
    BarrierInit(&shared.angles_empty[i], Tile::kGroupThreads);
  }
  BarrierInit(&shared.query_full, 1);
  BarrierInit(&shared.dealt_full, 1);
  BarrierInitFence();
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    PrefillAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                           const __grid_constant__ PrefillMaps maps, PrefillShare share,
                           float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<PrefillShared*>(smem);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    PrefetchMap(&maps.queries);
    PrefetchMap(&maps.latents);
    InitBarriers(shared);
  }
  __syncthreads();
  switch (threadIdx.x / Tile::kGroupThreads) {
    case 0:
      GrowRegisters<Tile::kScoreRegisters>();
      WaitForPreviousKernel();
      ScorePrefill(args, maps, share, scale, shared);
      break;
    case 1:
    case 2:
      GrowRegisters<Tile::kValueRegisters>();
      WaitForPreviousKernel();
      SumPrefill(args, share, shared);
      break;
    default:
      ShrinkRegisters<Tile::kLoadRegisters>();
      if (threadIdx.x % Tile::kGroupThreads / 32 < Tile::kGatherWarps) {
        WaitForPreviousKernel();
        GatherPrefill(args, maps, share, shared);
      } else {
        ListPrefill(args, share, ticket_words, shared);
      }
  }
#endif
}

// bf16 [tokens of the batch, 512].
CUtensorMap MakeLatentMap(const SparseAttentionArgs& args) {
  return MakeTensorMap(
      {.data = args.latents - args.first_token * Tile::kDims,
       .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
       .rank = 2,
       .size = {Tile::kDims, static_cast<uint64_t>(args.first_token + args.num_tokens)},
       .stride = {Tile::kDims * 2},
       .box = {64, Tile::kKeys},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

}  // namespace

void LaunchSparseAttentionPrefill(const SparseAttentionArgs& args, float scale,
                                  cudaStream_t stream) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(PrefillShared));
  const int items = NumPrefillItems(args);
  const int blocks = std::min(items, CurrentDevice().processors);
  CUDA_CHECK(cudaFuncSetAttribute(PrefillAttentionKernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  LaunchOverlapped(PrefillAttentionKernel,
                   {.blocks = blocks, .threads = Tile::kThreads, .shared_bytes = kSharedBytes},
                   stream, args,
                   PrefillMaps{.queries = MakeHeadMap(args, args.q, Tile::kHeads),
                               .latents = MakeLatentMap(args)},
                   PrefillShare{.whole = items / blocks,
                                .rest = items % blocks,
                                .ticket_word = TicketWord(stream)},
                   scale);
}

}  // namespace lodestone::cuda

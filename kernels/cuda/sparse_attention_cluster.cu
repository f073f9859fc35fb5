// Sparse attention of few tokens (sm_90a): a cluster of 8 or 16 thread blocks for some heads of one
// token; 16 blocks for 16 heads are sparse_attention_token.cu. The same bits as
// sparse_attention_blocks.cu.
//
// A block takes one or two steps of 64 keys, computes their scores and probabilities and copies
// these to all blocks, through distributed shared memory. Then every block adds up its 32 or 64
// dims of the output over all keys, in the order in which sparse_attention_blocks.cu does it. So
// nothing but probabilities is exchanged, once, and no sum is cut. The first warpgroup computes;
// the second lists the keys, loads the values and finds the denominators.
//
// Bound by latency: launch, one dependent load, the keys, 32 products for the scores, one exchange,
// 4 products a step for the values. Measured on an H200: 7.5 us for two tokens of 64 heads and 640
// keys, of which the bytes are 0.35, and 12.0 for eight.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_dims.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sparse_attention.h"

namespace lodestone::cuda {
namespace {

enum NamedBarrier : int { kStored = 1, kScaled = 2, kListed = 3, kSumsJoined = 4 };

// Probabilities of the steps that fall to this block.
template <typename Tile>
struct OwnSteps {
  uint32_t probs[Tile::kStepsEach][4][4];
  RowStats stats[Tile::kStepsEach];
};

// By the first warpgroup.
template <typename Tile>
__device__ void ScoreSteps(int num_keys, int num_steps, int rank, float scale,
                           ClusterShared<Tile>& shared, OwnSteps<Tile>& own) {
  HeadQuery query;
  BarrierWait(&shared.query_full, 0);
  LoadHeadQuery<Tile::kHeads>(shared.query, query);
  BarrierArrive(&shared.query_taken);
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    const int step = rank + turn * Tile::kBlocks;
    if (step >= num_steps) break;
    float scores[32];
    ScoreStep<Tile::kPieces>(query, shared.keys[turn], shared.keys_full[turn], 0, scores);
    if (step + Tile::kBlocks >= num_steps) ClusterArriveRelaxed();
    own.stats[turn] = {{-INFINITY, -INFINITY}, {0, 0}};
    float rescale[2];
    ToProbabilities(scores, num_keys - step * Tile::kKeys, scale, own.stats[turn], own.probs[turn],
                    rescale);
  }
  if (rank >= num_steps) ClusterArriveRelaxed();
}

// Sends the results of this block's steps to all other blocks and stores them here, twice: their
// place among all changes once all have come. By the first warpgroup.
template <typename Tile>
__device__ void ShareSteps(int num_steps, int rank, const OwnSteps<Tile>& own,
                           ClusterShared<Tile>& shared) {
  int received = num_steps;
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    if (rank + turn * Tile::kBlocks >= num_steps) break;
    --received;
    StoreResult(own.probs[turn], own.stats[turn], turn, shared.own_results);
  }
  SharedProxyFence();
  NamedBarrierSync(kStored, Tile::kGroupThreads);
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    const int step = rank + turn * Tile::kBlocks;
    if (step >= num_steps) break;
    CopyResult<Tile::kBlocks>(shared.own_results, turn, rank, step, shared.results,
                              &shared.results_full);
  }
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    const int step = rank + turn * Tile::kBlocks;
    if (step >= num_steps) break;
    StoreResult(own.probs[turn], own.stats[turn], step, shared.results);
  }
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&shared.results_full, received * decltype(shared.results)::kStepBytes);
  } else {
    BarrierArrive(&shared.results_full);
  }
}

// The first warpgroup.
template <typename Tile>
__device__ void ComputeDims(const SparseAttentionArgs& args, const ClusterWork& work, int num_keys,
                            float scale, ClusterShared<Tile>& shared) {
  const int num_steps = (num_keys + Tile::kKeys - 1) / Tile::kKeys;
  OwnSteps<Tile> own;
  ScoreSteps(num_keys, num_steps, work.rank, scale, shared, own);
  ClusterWait();  // all blocks have their scores: results may take the keys' place
  ShareSteps(num_steps, work.rank, own, shared);
  BarrierWait(&shared.results_full, 0);
  __syncwarp();
  ClusterArriveRelaxed();
  ScaleProbabilities(shared.results, num_steps, JoinReferences(shared.results, num_steps));
  NamedBarrierSync(kScaled, Tile::kGroupThreads);
  BarrierWait(&shared.values_full, 0);
  SharedProxyFence();
  float sums[Tile::kBlockDims / 2];
  SumValues(num_steps, shared, sums);
  NamedBarrierSync(kSumsJoined, Tile::kThreads);
  StoreDims(args, work, sums, shared);
  ClusterWait();  // all blocks have this one's results
}

// The angles of this block's dims, by its last threads.
template <typename Tile>
__device__ void FindAngles(const SparseAttentionArgs& args, const ClusterWork& work,
                           int32_t position, ClusterShared<Tile>& shared) {
  const int pair = static_cast<int>(threadIdx.x) - (Tile::kThreads - Tile::kBlockDims / 2);
  const int rope_pair = (work.rank * Tile::kBlockDims - (Tile::kDims - Tile::kRopeDims)) / 2 + pair;
  if (pair >= 0 && rope_pair >= 0) {
    shared.angles[pair] = RopeAngle(position, args.freqs[rope_pair]);
  }
}

// The second warpgroup: the list of all keys, the values, then 1 / denominator. Entry i of
// `entries` is number thread + kGroupThreads i.
template <typename Tile>
using ListEntries =
    int32_t[(Tile::kMaxSteps * Tile::kKeys + Tile::kGroupThreads - 1) / Tile::kGroupThreads];
template <typename Tile>
__device__ void LoadList(const SparseAttentionArgs& args, const ClusterWork& work,
                         const TokenKeys& keys, const PageTable& pages,
                         const ListEntries<Tile>& entries, int num_keys, const float (&sink)[2],
                         ClusterShared<Tile>& shared) {
  ClusterArriveRelaxed();
  ListRows<Tile::kGroupThreads>(args, keys, pages, entries, shared.rows);
  NamedBarrierSync(kListed, Tile::kGroupThreads);
  const int num_steps = (num_keys + Tile::kKeys - 1) / Tile::kKeys;
  BarrierWait(&shared.query_taken, 0);
  LoadValues(num_keys, num_steps, work.rank, shared);
  FindAngles(args, work, keys.position, shared);
  __syncwarp();
  ClusterWait();
  BarrierWait(&shared.results_full, 0);
  __syncwarp();
  ClusterArriveRelaxed();
  float inverse[2];
  JoinSums(shared.results, num_steps, JoinReferences(shared.results, num_steps), sink, inverse);
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
  if (row < Tile::kHeads && threadIdx.x % 4 == 0) {
    shared.inverse[row] = inverse[0];
    shared.inverse[row + 8] = inverse[1];
  }
  NamedBarrierArrive(kSumsJoined, Tile::kThreads);
  ClusterWait();
}

// By one thread.
template <typename Tile>
__device__ void InitBarriers(ClusterShared<Tile>& shared) {
  BarrierInit(&shared.query_full, 1);
  BarrierInit(&shared.query_taken, Tile::kGroupThreads);
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    for (int i = 0; i < Tile::kPieces; ++i) {
      BarrierInit(&shared.keys_full[turn][i], Tile::kThreads);
    }
  }
  BarrierInit(&shared.values_full, Tile::kGroupThreads);
  BarrierInit(&shared.results_full, Tile::kGroupThreads);
  BarrierInitFence();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    ClusterAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                           const __grid_constant__ CUtensorMap query_map, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<ClusterShared<Tile>*>(smem);
  AllowNextKernel();
  const ClusterWork work = FindWork<Tile>(args);
  // No kernel writes what is read here.
  const TokenKeys keys = FindKeys(args, work.token);
  if (threadIdx.x == 0) {
    PrefetchMap(&query_map);
    InitBarriers(shared);
  }
  float sink[2];
  LoadSinks<Tile>(args, work.head, sink);
  const PageTable pages = LoadPageTable<Tile::kThreads>(args, work.token, keys, shared.pages);
  __syncthreads();
  WaitForPreviousKernel();
  if (threadIdx.x == Tile::kThreads - 1) {
    BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
    CopyBox4With(kEvictNormal, shared.query, &query_map, &shared.query_full, 0, work.head, 0,
                 static_cast<int>(work.token));
  }
  // Straight to this block's keys; the list of all comes behind.
  const OwnRows<Tile> own = FindOwnRows<Tile>(args, work.token, work.rank, keys, pages);
  const int32_t part_end = LoadPartEnd(args, work.token);
  const bool lists = threadIdx.x >= Tile::kGroupThreads;
  ListEntries<Tile> entries;
  if (lists) {
    LoadEntries<Tile::kGroupThreads>(args, work.token, keys,
                                     static_cast<int>(threadIdx.x) - Tile::kGroupThreads, entries);
  }
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    LoadOwnRows<Tile>(own.from[turn], shared.keys[turn][0], shared.keys_full[turn]);
  }
  const int num_keys = CountKeys(args, work.token, keys, part_end);
  if (lists) {
    LoadList<Tile>(args, work, keys, pages, entries, num_keys, sink, shared);
  } else {
    ComputeDims(args, work, num_keys, scale, shared);
  }
#endif
}

template <typename Tile>
void AllowCluster() {
  CUDA_CHECK(cudaFuncSetAttribute(ClusterAttentionKernel<Tile>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(ClusterShared<Tile>))));
  CUDA_CHECK(cudaFuncSetAttribute(ClusterAttentionKernel<Tile>,
                                  cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

template <typename Tile>
void Launch(const SparseAttentionArgs& args, float scale, cudaStream_t stream) {
  AllowCluster<Tile>();
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  LaunchOverlapped(ClusterAttentionKernel<Tile>,
                   {.blocks = args.num_tokens * head_groups * Tile::kBlocks,
                    .threads = Tile::kThreads,
                    .shared_bytes = static_cast<int>(sizeof(ClusterShared<Tile>)),
                    .cluster = Tile::kBlocks},
                   stream, args, MakeQueryMap(args, Tile::kHeads), scale);
}

template <typename Tile>
int CountClusters() {
  AllowCluster<Tile>();
  return MaxActiveClusters(ClusterAttentionKernel<Tile>,
                           {.blocks = Tile::kBlocks,
                            .threads = Tile::kThreads,
                            .shared_bytes = static_cast<int>(sizeof(ClusterShared<Tile>)),
                            .cluster = Tile::kBlocks});
}

}  // namespace

// A block takes a processor of its own with any number of heads.
int CountClusters16() { return CountClusters<ClusterTile<32, 16>>(); }
int CountClusters8() { return CountClusters<ClusterTile<16, 8>>(); }

void LaunchSparseAttentionCluster(const SparseAttentionArgs& args, const ClusterShape& shape,
                                  float scale, cudaStream_t stream) {
  if (shape.blocks == 16) {
    if (shape.heads == 32) return Launch<ClusterTile<32, 16>>(args, scale, stream);
    return Launch<ClusterTile<64, 16>>(args, scale, stream);
  }
  switch (shape.heads) {
    case 16:
      return Launch<ClusterTile<16, 8>>(args, scale, stream);
    case 32:
      return Launch<ClusterTile<32, 8>>(args, scale, stream);
    default:
      return Launch<ClusterTile<64, 8>>(args, scale, stream);
  }
}

}  // namespace lodestone::cuda

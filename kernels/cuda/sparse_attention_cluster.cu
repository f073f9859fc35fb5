// Sparse attention of few tokens (sm_90a): a cluster of 8 or 16 thread blocks for some heads of one
// token. The same bits as sparse_attention_blocks.cu.
//
// A block takes one or two steps of 64 keys, computes their scores and probabilities and sends
// these to all blocks, through distributed shared memory. Then every block adds up its 32 or 64
// dims of the output over all keys, in the order in which sparse_attention_blocks.cu does it. So
// nothing but probabilities is exchanged, once, and no sum is cut.
//
// Bound by latency: launch, two dependent loads, the keys, 32 products for the scores, one
// exchange, 4 products a step for the values.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sparse_attention.h"

namespace lodestone::cuda {
namespace {

enum NamedBarrier : int { kResultStored = 1, kJoined = 2, kSumsJoined = 3 };

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
  LoadHeadQuery<Tile::kHeads>(shared.begin.query, query);
  BarrierArrive(&shared.query_taken);
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    const int step = rank + turn * Tile::kBlocks;
    if (step >= num_steps) break;
    BarrierWait(&shared.keys_full[turn], 0);
    SharedProxyFence();
    float scores[32];
    ScoreStep(query, shared.scoring.keys[turn], scores);
    if (step + Tile::kBlocks >= num_steps) ClusterArrive();
    own.stats[turn] = {{-INFINITY, -INFINITY}, {0, 0}};
    float rescale[2];
    ToProbabilities(scores, num_keys - step * Tile::kKeys, scale, own.stats[turn], own.probs[turn],
                    rescale);
  }
  if (rank >= num_steps) ClusterArrive();
}

// Stores the results of this block's steps and sends them to all others. By the first warpgroup.
template <typename Tile>
__device__ void ShareSteps(int num_steps, int rank, const OwnSteps<Tile>& own,
                           ClusterShared<Tile>& shared) {
  int received = num_steps;
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    const int step = rank + turn * Tile::kBlocks;
    if (step >= num_steps) break;
    --received;
    StoreResult(own.probs[turn], own.stats[turn], shared.results[step]);
  }
  NamedBarrierSync(kResultStored, Tile::kGroupThreads);
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&shared.results_full, received * sizeof(StepResult<Tile::kHeads>));
  } else {
    BarrierArrive(&shared.results_full);
  }
  for (int step = rank; step < num_steps; step += Tile::kBlocks) {
    SendResult(shared.results[step], &shared.results_full, rank, Tile::kBlocks);
  }
}

// The A operands of some steps.
constexpr int kGroupSteps = 5;
using StepGroup = uint32_t[kGroupSteps][4][4];
template <typename Tile>
__device__ void LoadGroup(int first_step, int num_steps, const ClusterShared<Tile>& shared,
                          StepGroup& probs) {
#pragma unroll
  for (int i = 0; i < kGroupSteps; ++i) {
    const bool present = first_step + i < num_steps;
    const int step = present ? first_step + i : 0;
    LoadProbabilities(shared.results[step], shared.joined.factors[step], present, probs[i]);
  }
}

template <typename Tile>
__device__ uint64_t ValuesDescriptor(uint32_t shared_address) {
  if constexpr (Tile::kBlockDims == 32) {
    return NarrowTileDescriptor(shared_address);
  } else {
    return ColumnTileDescriptor(shared_address, Tile::kKeys * Tile::kValueRowBytes);
  }
}

template <typename Tile>
__device__ void QueueValues(int first_step, int num_steps, const StepGroup& probs,
                            const ClusterShared<Tile>& shared,
                            float (&sums)[Tile::kBlockDims / 2]) {
  WgmmaFence();
#pragma unroll
  for (int turn = 0; turn < kGroupSteps; ++turn) {
    const int step = first_step + turn < num_steps ? first_step + turn : 0;
    const uint64_t values = ValuesDescriptor<Tile>(SharedAddress(shared.values[step]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaRegisterAColumns(sums, probs[turn][i],
                            AdvanceTile(values, i * 16 * Tile::kValueRowBytes), true);
    }
  }
  WgmmaCommit();
}

// sums = probabilities x this block's dims of the values.
template <typename Tile>
__device__ void SumValues(int num_steps, const ClusterShared<Tile>& shared,
                          float (&sums)[Tile::kBlockDims / 2]) {
  StepGroup even;
  StepGroup odd;
#pragma unroll
  for (float& sum : sums) sum = 0;
  LoadGroup(0, num_steps, shared, even);
  for (int step = 0; step < num_steps; step += 2 * kGroupSteps) {
    QueueValues(step, num_steps, even, shared, sums);
    if (const int next = step + kGroupSteps; next < num_steps) {
      LoadGroup(next, num_steps, shared, odd);
      QueueValues(next, num_steps, odd, shared, sums);
    }
    if (const int next = step + 2 * kGroupSteps; next < num_steps) {
      WgmmaWait<1>();  // what reads `even` is done
      LoadGroup(next, num_steps, shared, even);
    }
  }
  WgmmaWait<0>();
  HoldRegisters(sums);
}

// Divides, rounds, rotates back and stores this block's dims.
template <typename Tile>
__device__ void StoreDims(const SparseAttentionArgs& args, const ClusterWork& work,
                          const float (&sums)[Tile::kBlockDims / 2],
                          const ClusterShared<Tile>& shared) {
  constexpr int kFirstRope = (Tile::kDims - Tile::kRopeDims) / Tile::kBlockDims;
  const int pair = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + 8 * j;
    const int head = work.head + row;
    if (row >= Tile::kHeads || head >= args.num_heads) continue;
    const float inverse = shared.joined.inverse[row];
    uint16_t* const out = args.out + (work.token * args.num_heads + head) * Tile::kDims +
                          work.rank * Tile::kBlockDims + 2 * pair;
#pragma unroll
    for (int i = 0; i < Tile::kBlockDims / 8; ++i) {  // blocks of 8 dims
      uint32_t word = PackBf16(sums[4 * i + 2 * j] * inverse, sums[4 * i + 2 * j + 1] * inverse);
      if (work.rank >= kFirstRope) word = RotateBack(word, shared.angles[4 * i + pair]);
      *reinterpret_cast<uint32_t*>(out + 8 * i) = word;
    }
  }
}

// The second warpgroup: the keys of a second step, the values; then 1 / denominator. `sink` is that
// of head threadIdx.x of the warpgroup.
template <typename Tile>
__device__ void LoadSteps(const ClusterWork& work, int num_keys, int num_steps, float sink,
                          ClusterShared<Tile>& shared) {
  if (const int step = work.rank + Tile::kBlocks; step < num_steps) {
    BarrierWait(&shared.query_taken, 0);
    LoadKeys<Tile::kGroupThreads>(shared.rows, num_keys, step, kEvictFirst,
                                  shared.scoring.keys[1][0], &shared.keys_full[1]);
  }
  LoadValues(num_keys, num_steps, work.rank, shared);
  __syncwarp();
  ClusterArrive();
  ClusterWait();
  BarrierWait(&shared.results_full, 0);
  __syncwarp();
  ClusterArrive();
  if (const int row = threadIdx.x % Tile::kGroupThreads; row < Tile::kHeads) {
    JoinSums(shared.results, num_steps, row, sink, shared.joined);
  }
  NamedBarrierArrive(kSumsJoined, Tile::kThreads);
  ClusterWait();
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

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    ClusterAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                           const __grid_constant__ CUtensorMap query_map, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<ClusterShared<Tile>*>(smem);
  AllowNextKernel();
  const ClusterWork work = FindWork<Tile>(args);
  if (threadIdx.x == 0) {
    PrefetchMap(&query_map);
    BarrierInit(&shared.query_full, 1);
    BarrierInit(&shared.query_taken, Tile::kGroupThreads);
    BarrierInit(&shared.keys_full[0], Tile::kThreads);
    BarrierInit(&shared.keys_full[1], Tile::kGroupThreads);
    BarrierInit(&shared.values_full, Tile::kGroupThreads);
    BarrierInit(&shared.results_full, Tile::kGroupThreads);
    BarrierInitFence();
  }
  __syncthreads();
  // No kernel writes what is read here.
  const TokenKeys keys = FindKeys(args, work.token);
  const int row = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const float sink = row < Tile::kHeads && work.head + row < args.num_heads
                         ? args.sink[work.head + row]
                         : -INFINITY;
  TouchPages<Tile::kThreads>(args, keys);
  FindAngles(args, work, keys.position, shared);
  WaitForPreviousKernel();
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&shared.query_full, sizeof(shared.begin.query));
    for (int i = 0; i < Tile::kSlices; ++i) {
      CopyBox3(shared.begin.query[i], &query_map, &shared.query_full, i * 64, work.head,
               static_cast<int>(work.token));
    }
  }
  const int num_keys = ListRows<Tile>(args, work.token, keys, shared.rows);
  const int num_steps = (num_keys + Tile::kKeys - 1) / Tile::kKeys;
  if (work.rank < num_steps) {
    LoadKeys<Tile::kThreads>(shared.rows, num_keys, work.rank, kEvictFirst,
                             shared.scoring.keys[0][0], &shared.keys_full[0]);
  }
  if (threadIdx.x >= Tile::kGroupThreads) {
    LoadSteps(work, num_keys, num_steps, sink, shared);
    return;
  }
  OwnSteps<Tile> own;
  ScoreSteps(num_keys, num_steps, work.rank, scale, shared, own);
  ClusterWait();  // all blocks have their scores: results may take the keys' place
  ShareSteps(num_steps, work.rank, own, shared);
  BarrierWait(&shared.results_full, 0);
  __syncwarp();
  ClusterArrive();
  if (threadIdx.x < Tile::kHeads) {
    JoinFactors(shared.results, num_steps, static_cast<int>(threadIdx.x), shared.joined);
  }
  NamedBarrierSync(kJoined, Tile::kGroupThreads);
  BarrierWait(&shared.values_full, 0);
  SharedProxyFence();
  float sums[Tile::kBlockDims / 2];
  SumValues(num_steps, shared, sums);
  NamedBarrierSync(kSumsJoined, Tile::kThreads);
  StoreDims(args, work, sums, shared);
  ClusterWait();  // all blocks have this one's results
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
                   stream, args, MakeHeadMap(args, args.q, Tile::kHeads), scale);
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
int CountClusters16() { return CountClusters<ClusterTile<16, 16>>(); }
int CountClusters8() { return CountClusters<ClusterTile<16, 8>>(); }

void LaunchSparseAttentionCluster(const SparseAttentionArgs& args, const ClusterShape& shape,
                                  float scale, cudaStream_t stream) {
  if (shape.blocks == 16) {
    switch (shape.heads) {
      case 16:
        return Launch<ClusterTile<16, 16>>(args, scale, stream);
      case 32:
        return Launch<ClusterTile<32, 16>>(args, scale, stream);
      default:
        return Launch<ClusterTile<64, 16>>(args, scale, stream);
    }
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

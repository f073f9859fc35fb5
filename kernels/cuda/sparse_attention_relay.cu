// Sparse attention of some tens of tokens (sm_90a): a cluster of 2 or 4 thread blocks for 64 heads
// of one token. The same bits as sparse_attention_blocks.cu.
//
// As in sparse_attention_cluster.cu, blocks share the steps of 64 keys for scores and
// probabilities, and the dims for the output; but each has several steps, and what it needs passes
// through shared memory piece by piece: two computing warpgroups take turns with its steps and send
// each step's probabilities as they come; when all are there, each adds up a part of the dims, step
// by step. The third warpgroup loads: the keys of the block's own steps, then its dims of all keys,
// from the L2 cache, where they lie by then.
//
// Bound by latency at first, then by the gather through L2: 2 KiB a key. Measured on an H200 with
// 64 heads and 640 keys: 0.34 of the read rate for 32 tokens, 0.51 for 64.

#include "kernels/cuda/device/attention_relay.cuh"

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

enum NamedBarrier : int { kAnglesFound = 1 };

// Scores and probabilities of every second turn of this block, sent to the others. By one computing
// warpgroup.
template <typename Tile>
__device__ void ScoreTurns(int num_keys, int num_steps, int rank, int group, float scale,
                           RelayShared<Tile>& shared) {
  HeadQuery query;
  BarrierWait(&shared.query_full, 0);
  LoadHeadQuery<Tile::kHeads>(shared.query, query);
  __syncwarp();
  ClusterArrive();
  ClusterWait();  // results may take the queries' place, in all blocks
  int use = 0;
  for (int step = rank + group * Tile::kBlocks; step < num_steps;
       step += 2 * Tile::kBlocks, use ^= 1) {
    float scores[32];
    ScoreStep<1>(query, shared.keys[group], &shared.keys_full[group], use, scores);
    BarrierArrive(&shared.keys_empty[group]);
    RowStats stats = {{-INFINITY, -INFINITY}, {0, 0}};
    uint32_t probs[4][4];
    float rescale[2];
    ToProbabilities(scores, num_keys - step * Tile::kKeys, scale, stats, probs, rescale);
    SendResult<Tile::kBlocks>(probs, stats, rank, step, shared.results, &shared.results_full);
  }
}

// sums = probabilities x a warpgroup's dims of the values.
template <typename Tile>
__device__ void SumGroupDims(int num_steps, int num_turns, int group, const RowReferences& rows,
                             RelayShared<Tile>& shared, float (&sums)[Tile::kGroupDims / 2]) {
  constexpr int kGroupSlices = Tile::kGroupDims / 64;
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = ValueStage<Tile>(step, num_turns);
    uint32_t probs[4][4];
    LoadProbabilities(shared.results, step, rows, probs);
    BarrierWait(&shared.values_full[stage], step / Tile::kValueStages % 2);
    SharedProxyFence();
    const uint64_t values = ColumnTileDescriptor(
        SharedAddress(shared.values[stage][group * kGroupSlices]), Tile::kSliceBytes);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i) {
      WgmmaRegisterAColumns(sums, probs[i], AdvanceTile(values, i * 16 * 128), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    HoldRegisters(sums);
    BarrierArrive(&shared.values_empty[stage]);
  }
}

// Divides, rounds, rotates back and stores a warpgroup's dims.
template <typename Tile>
__device__ void StoreGroupDims(const SparseAttentionArgs& args, const ClusterWork& work, int group,
                               const float (&sums)[Tile::kGroupDims / 2], const float (&inverse)[2],
                               const RelayShared<Tile>& shared) {
  const int pair = static_cast<int>(threadIdx.x % 4);
  const int first_dim = work.rank * Tile::kBlockDims + group * Tile::kGroupDims;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) + 8 * j;
    const int head = work.head + row;
    if (head >= args.num_heads) continue;
    uint16_t* const out =
        args.out + (work.token * args.num_heads + head) * Tile::kDims + first_dim + 2 * pair;
#pragma unroll
    for (int i = 0; i < Tile::kGroupDims / 8; ++i) {  // blocks of 8 dims
      uint32_t word =
          PackBf16(sums[4 * i + 2 * j] * inverse[j], sums[4 * i + 2 * j + 1] * inverse[j]);
      const int rope_dim = first_dim + 8 * i - (Tile::kDims - Tile::kRopeDims);
      if (rope_dim >= 0) word = RotateBack(word, shared.angles[rope_dim / 2 + pair]);
      *reinterpret_cast<uint32_t*>(out + 8 * i) = word;
    }
  }
}

// A computing warpgroup. `sink` is that of rows r and r + 8 of this thread.
template <typename Tile>
__device__ void ComputeRelay(const SparseAttentionArgs& args, const ClusterWork& work, int num_keys,
                             float scale, const float (&sink)[2], RelayShared<Tile>& shared) {
  using Results = StepResults<Tile::kHeads, Tile::kMaxSteps>;
  const int group = static_cast<int>(threadIdx.x) / Tile::kGroupThreads;
  const int num_steps = (num_keys + Tile::kKeys - 1) / Tile::kKeys;
  const int num_turns = NumTurns<Tile>(num_steps, work.rank);
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&shared.results_full, num_steps * Results::kStepBytes);
  }
  ScoreTurns(num_keys, num_steps, work.rank, group, scale, shared);
  BarrierWaitCluster(&shared.results_full, 0);
  const RowReferences rows = JoinReferences(shared.results, num_steps);
  float sums[Tile::kGroupDims / 2];
  SumGroupDims(num_steps, num_turns, group, rows, shared, sums);
  float inverse[2];
  JoinSums(shared.results, num_steps, rows, sink, inverse);
  NamedBarrierSync(kAnglesFound, Tile::kThreads);
  StoreGroupDims(args, work, group, sums, inverse, shared);
}

// By one thread.
template <typename Tile>
__device__ void InitBarriers(RelayShared<Tile>& shared) {
  BarrierInit(&shared.query_full, 1);
  BarrierInit(&shared.results_full, 1);
  for (int i = 0; i < Tile::kKeyStages; ++i) {
    BarrierInit(&shared.keys_full[i], Tile::kGroupThreads);
    BarrierInit(&shared.keys_empty[i], Tile::kGroupThreads);
  }
  for (int i = 0; i < Tile::kValueStages; ++i) {
    BarrierInit(&shared.values_full[i], Tile::kGroupThreads);
    BarrierInit(&shared.values_empty[i], Tile::kComputeThreads);
  }
  BarrierInitFence();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    RelayAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                         const __grid_constant__ CUtensorMap query_map, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<RelayShared<Tile>*>(smem);
  AllowNextKernel();
  const ClusterWork work = FindWork<Tile>(args);
  if (threadIdx.x == 0) {
    PrefetchMap(&query_map);
    InitBarriers(shared);
  }
  // No kernel writes what is read here.
  const TokenKeys keys = FindKeys(args, work.token);
  float sink[2];
  LoadSinks<Tile>(args, work.head, sink);
  const PageTable pages = LoadPageTable<Tile::kThreads>(args, work.token, keys, shared.pages);
  __syncthreads();
  const bool begun = BeginsWithOldRows<Tile>(args, keys, work.rank);
  if (begun && threadIdx.x >= Tile::kComputeThreads) {
    LoadWindowStep<Tile>(args, keys, work.rank, false, shared);
  }
  WaitForPreviousKernel();
  const int32_t part_end = LoadPartEnd(args, work.token);
  if (threadIdx.x == 0) {
    BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
    CopyBox4With(kEvictNormal, shared.query, &query_map, &shared.query_full, 0, work.head, 0,
                 static_cast<int>(work.token));
  }
  int32_t entries[Tile::kEntriesEach];
  LoadEntries<Tile::kThreads>(args, work.token, keys, static_cast<int>(threadIdx.x), entries);
  ListRows<Tile::kThreads>(args, keys, pages, entries, shared.rows);
  const int num_keys = CountKeys(args, work.token, keys, part_end);
  __syncthreads();
  if (threadIdx.x >= Tile::kComputeThreads) {
    ShrinkRegisters<Tile::kLoadRegisters>();
    ClusterArrive();
    LoadRelay(args, keys, num_keys, work.rank, begun, shared);
    if (const int pair = static_cast<int>(threadIdx.x) - Tile::kComputeThreads;
        pair < Tile::kRopeDims / 2) {
      shared.angles[pair] = RopeAngle(keys.position, args.freqs[pair]);
    }
    NamedBarrierArrive(kAnglesFound, Tile::kThreads);
  } else {
    GrowRegisters<Tile::kComputeRegisters>();
    ComputeRelay(args, work, num_keys, scale, sink, shared);
  }
#endif
}

template <typename Tile>
LaunchShape AllowRelay(int64_t clusters) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(RelayShared<Tile>));
  CUDA_CHECK(cudaFuncSetAttribute(RelayAttentionKernel<Tile>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  return {.blocks = clusters * Tile::kBlocks,
          .threads = Tile::kThreads,
          .shared_bytes = kSharedBytes,
          .cluster = Tile::kBlocks};
}

template <typename Tile>
void Launch(const SparseAttentionArgs& args, float scale, cudaStream_t stream) {
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  LaunchOverlapped(RelayAttentionKernel<Tile>, AllowRelay<Tile>(args.num_tokens * head_groups),
                   stream, args, MakeQueryMap(args, Tile::kHeads), scale);
}

template <typename Tile>
int CountRelays() {
  return MaxActiveClusters(RelayAttentionKernel<Tile>, AllowRelay<Tile>(1));
}

}  // namespace

int CountRelays(int cluster_blocks) {
  return cluster_blocks == 4 ? CountRelays<RelayTile<4>>() : CountRelays<RelayTile<2>>();
}

void LaunchSparseAttentionRelay(const SparseAttentionArgs& args, int cluster_blocks, float scale,
                                cudaStream_t stream) {
  if (cluster_blocks == 4) return Launch<RelayTile<4>>(args, scale, stream);
  Launch<RelayTile<2>>(args, scale, stream);
}

}  // namespace lodestone::cuda

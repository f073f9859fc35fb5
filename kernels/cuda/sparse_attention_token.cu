// Sparse attention of few tokens (sm_90a): a cluster of 16 thread blocks for 16 heads of one token.
// The same bits as sparse_attention_blocks.cu.
//
// A block takes up to four groups of 16 keys, one a warp, and computes their scores with keys as
// rows and heads as columns, so that no row of the product is idle and a thread has 8 scores. It
// copies their probabilities to all blocks through distributed shared memory; then every block adds
// up its 32 dims of the output over all keys in order. Nothing but probabilities is waited for:
//  - They are relative to 0, not to the largest score, as long as all scores are near enough; the
//    bits of the result are the same (device/attention_math.cuh). Else all blocks see it in the
//    results, and exchange references and then probabilities again.
//  - Denominators are found beside the products: block h adds up those of head h, in the order of
//    the other kernels.
//
// The first warpgroup computes; the second loads the values; the third finds the denominators and,
// with the second, lists the rows of all keys.
//
// Bound by latency: launch, one dependent load, the keys, 32 products for the scores, one exchange,
// 40 products for the values of 640 keys. Measured on an H200: 5.7 us for one token of 64 heads and
// 640 keys, of which the bytes are 0.2.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/attention_dims.cuh"
#include "kernels/cuda/device/attention_groups.cuh"
#include "kernels/cuda/device/attention_token.cuh"
#include "kernels/cuda/device/attention_token_products.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

using Tile = TokenTile;

enum NamedBarrier : int { kAnglesFound = 1, kStepsSummed, kListed, kStored, kScored };

// Divides, rounds, rotates back and stores this block's dims. By the first warp. `exact`: the sums
// are relative to the reference of the denominator, not to 0.
__device__ void StoreTokenDims(const SparseAttentionArgs& args, const ClusterWork& work, bool exact,
                               const float (&sums)[Tile::kBlockDims / 2],
                               const TokenShared& shared) {
  const int pair = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = static_cast<int>(threadIdx.x % 32 / 4) + 8 * j;
    const int head = work.head + row;
    if (head >= args.num_heads) continue;
    const float2 inverse = shared.inverse[row];
    const int exponent = exact ? 0 : -static_cast<int>(inverse.y);
    const float factor = inverse.x * __int_as_float((exponent + 127) << 23);
    StoreHeadDims<Tile>(args, work, head, pair, j, factor, sums, shared);
  }
}

// Whether a group's scores were too far from 0: the same answer in all blocks. By a warp.
__device__ bool AnyFar(const TokenShared& shared, int num_groups) {
  uint32_t far = 0;
#pragma unroll
  for (int i = 0; i < Tile::kMaxGroups; i += 32) {
    const int group = i + static_cast<int>(threadIdx.x % 32);
    if (group < num_groups) far |= shared.results[group].far.x;
  }
  return __any_sync(~0u, far != 0);
}

// The groups that a block has of a token, and this warp's among them.
struct OwnResults {
  int first;
  int count;
  int group;
  bool present;  // whether the warp has one
};
__device__ OwnResults FindOwnResults(const OwnGroups& groups, int num_groups) {
  OwnResults own;
  own.first = groups.first;
  own.count = max(min(groups.end, num_groups) - groups.first, 0);
  own.group = groups.first + static_cast<int>(threadIdx.x % Tile::kGroupThreads / 32);
  own.present = own.group < own.first + own.count;
  return own;
}

// Exchanges probabilities relative to the largest scores. By the first warpgroup.
__device__ void ShareExactGroups(const GroupScores& scores, const OwnResults& own, int num_groups,
                                 int rank, TokenShared& shared) {
  // All blocks have sent references, so they no longer need their keys.
  BarrierWaitCluster(&shared.references_full, 0);
  if (own.present) {
    GroupReferences references;
    JoinReferences(shared, num_groups, references);
    StoreGroup(scores, references, false, shared.exact[own.group]);
  }
  NamedBarrierSync(kStored, Tile::kGroupThreads);
  CopyGroups(&shared.exact[own.first], own.count, num_groups, rank, &shared.exact_full);
  BarrierWait(&shared.exact_full, 0);
}

// The first warpgroup.
__device__ void ComputeToken(const SparseAttentionArgs& args, const ClusterWork& work,
                             const OwnGroups& groups, int num_keys, int num_groups, float scale,
                             TokenShared& shared) {
  constexpr GroupReferences kZeros = {};
  GroupScores scores;
  ScoreKeys(shared, scores);
  const OwnResults own = FindOwnResults(groups, num_groups);
  if (own.present) {
    const bool near = RoundGroup(scores, num_keys - own.group * Tile::kGroupKeys, scale);
    StoreGroup(scores, kZeros, !near, shared.results[own.group]);
    StoreScores(scores, shared);
  }
  NamedBarrierArrive(kScored, 2 * Tile::kGroupThreads);
  NamedBarrierSync(kStored, Tile::kGroupThreads);
  ClusterWait();  // all blocks have their barriers
  CopyGroups(&shared.results[own.first], own.count, num_groups, work.rank, &shared.results_full);
  BarrierWait(&shared.results_full, 0);
  const bool exact = AnyFar(shared, num_groups);
  if (exact) [[unlikely]] {
    ShareExactGroups(scores, own, num_groups, work.rank, shared);
  }
  __syncwarp();
  ClusterArriveRelaxed();
  float sums[Tile::kBlockDims / 2];
  SumTokenValues(exact ? shared.exact : shared.results, num_groups, shared, sums);
  if (threadIdx.x < 32) {
    BarrierWaitCluster(&shared.inverse_full, 0);
    NamedBarrierSync(kAnglesFound, Tile::kGroupThreads + 32);
    StoreTokenDims(args, work, exact, sums, shared);
  }
  __syncwarp();
  ClusterWait();  // all blocks have this one's results
}

// The angles of this block's dims. By the third warpgroup.
__device__ void FindTokenAngles(const SparseAttentionArgs& args, int rank, int32_t position,
                                TokenShared& shared) {
  const int pair = static_cast<int>(threadIdx.x % Tile::kGroupThreads);
  const int rope_pair = (rank * Tile::kBlockDims - (Tile::kDims - Tile::kRopeDims)) / 2 + pair;
  if (pair < Tile::kBlockDims / 2 && rope_pair >= 0) {
    shared.angles[pair] = RopeAngle(position, args.freqs[rope_pair]);
  }
  NamedBarrierArrive(kAnglesFound, Tile::kGroupThreads + 32);
}

// The denominator of head `rank`, sent to all blocks. By the third warpgroup.
__device__ void FindDenominator(int num_groups, int rank, float sink, TokenShared& shared) {
  const int thread = static_cast<int>(threadIdx.x % Tile::kGroupThreads);
  BarrierWaitCluster(&shared.references_full, 0);
  float largest = -INFINITY;
  for (int i = thread % 32; i < num_groups; i += 32) {
    largest = fmaxf(largest, ReferenceOf(shared, i, rank));
  }
#pragma unroll
  for (int lanes = 1; lanes <= 16; lanes *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
  }
  BarrierWaitCluster(&shared.sums_full, 0);
  // Of the groups of step t / 8 number t % 8 of their pair sums: what thread t % 8 / 2 of a row
  // adds up in the other kernels (Exponentials), the keys of blocks of 8 with number t % 2 in turn.
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Tile::kStepGroups; ++i) {
    const int group = thread / 8 * Tile::kStepGroups + i;
    if (group >= num_groups) break;
    sum = fmaf(reinterpret_cast<const float*>(shared.pair_sums[group])[thread % 8],
               PowerOfTwo(ReferenceOf(shared, group, rank) - largest), sum);
  }
#pragma unroll
  for (int lanes = 1; lanes <= 4; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (thread % 8 == 0) shared.step_sums[thread / 8] = sum;
  NamedBarrierSync(kStepsSummed, Tile::kGroupThreads);
  if (thread < Tile::kBlocks) {
    float total = 0;
    for (int i = 0; i * Tile::kStepGroups < num_groups; ++i) total += shared.step_sums[i];
    const float inverse = InverseDenominator(total, SinkTerm(sink, largest));
    StoreAsync(ClusterAddress(&shared.inverse[rank], thread),
               uint2{__float_as_uint(inverse), __float_as_uint(largest)},
               ClusterAddress(&shared.inverse_full, thread));
  }
  __syncwarp();
}

// By one thread.
__device__ void InitBarriers(TokenShared& shared) {
  BarrierInit(&shared.query_full, 1);
  for (uint64_t& full : shared.keys_full) BarrierInit(&full, Tile::kGroupKeys);
  BarrierInit(&shared.values_full, 2 * Tile::kGroupThreads);
  BarrierInit(&shared.results_full, Tile::kGroupThreads);
  BarrierInit(&shared.exact_full, Tile::kGroupThreads);
  BarrierInit(&shared.references_full, 1);
  BarrierInit(&shared.sums_full, 1);
  BarrierInit(&shared.inverse_full, 1);
  BarrierInitFence();
}
// What the denominators need from other blocks. By one thread.
__device__ void ExpectSums(int num_groups, TokenShared& shared) {
  BarrierArriveExpect(&shared.references_full, num_groups * sizeof(shared.references[0]));
  BarrierArriveExpect(&shared.sums_full, num_groups * sizeof(shared.pair_sums[0]));
  BarrierArriveExpect(&shared.inverse_full, sizeof(shared.inverse));
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    TokenAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                         const __grid_constant__ CUtensorMap query_map, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<TokenShared*>(smem);
  AllowNextKernel();
  const ClusterWork work = FindWork<Tile>(args);
  const int thread = static_cast<int>(threadIdx.x);
  // No kernel writes what is read here. All loads first.
  const TokenPlace place = LoadPlace(args, work.token);
  LoadedPages<Tile::kThreads> loaded;
  LoadPages(args, LikelySequence(args, work.token), loaded);
  const int sink_head = work.head + work.rank;
  const float sink = sink_head < args.num_heads ? args.sink[sink_head] : -INFINITY;
  if (thread == Tile::kThreads - 1) {
    PrefetchMap(&query_map);
    InitBarriers(shared);
  }
  const OwnGroups groups = FindOwnGroups(args, work.rank);
  // Parameters that are used behind the wait: reading them first takes hundreds of cycles.
  asm volatile("" ::"l"(args.top_entries), "l"(args.k), "l"(args.entries.payload),
               "l"(args.entries.payload_block_stride), "l"(args.latents), "l"(args.num_heads),
               "l"(args.out), "l"(args.freqs), "f"(scale), "r"(groups.first));
  const TokenKeys keys = KeysOf(args, work.token, place);
  const PageTable pages = StorePages(args, work.token, keys, loaded, shared.pages);
  __syncthreads();
  ClusterArriveRelaxed();
  WaitForPreviousKernel();
  if (thread == Tile::kThreads - 1) {
    BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
    CopyBox4With(kEvictNormal, shared.query, &query_map, &shared.query_full, 0, work.head, 0,
                 static_cast<int>(work.token));
  }
  // Straight to this block's keys; the list of all comes behind.
  const int role = thread / Tile::kGroupThreads;
  const OwnKey own_key = FindOwnKey(args, work.token, groups, keys, pages);
  const int32_t part_end = LoadPartEnd(args, work.token);
  int32_t entries[Tile::kEntriesEach];
  if (role > 0) {
    LoadEntries<Tile::kListThreads>(args, work.token, keys, thread - Tile::kGroupThreads, entries);
  }
  CopyOwnKey(own_key, shared);
  __syncwarp();
  const int num_keys = CountKeys(args, work.token, keys, part_end);
  const int num_groups = (num_keys + Tile::kGroupKeys - 1) / Tile::kGroupKeys;
  if (role == 0) {
    GrowRegisters<Tile::kComputeRegisters>();
    ComputeToken(args, work, groups, num_keys, num_groups, scale, shared);
  } else {
    ShrinkRegisters<Tile::kOtherRegisters>();
    ListRows<Tile::kListThreads, Tile::kGroupThreads>(args, keys, pages, entries, shared.rows);
    if (role == 1) {
      NamedBarrierSync(kListed, Tile::kListThreads);
      LoadTokenValues(num_keys, num_groups, work.rank, shared);
      __syncwarp();
      ClusterWait();
    } else {
      NamedBarrierArrive(kListed, Tile::kListThreads);
      if (thread == Tile::kThreads - 1) ExpectSums(num_groups, shared);
      FindTokenAngles(args, work.rank, keys.position, shared);
      const OwnResults own = FindOwnResults(groups, num_groups);
      __syncwarp();
      ClusterWait();
      NamedBarrierSync(kScored, 2 * Tile::kGroupThreads);
      if (own.present) {
        GroupScores scores;
        LoadScores(shared, scores);
        SendSums(scores, own.group, shared);
      }
      FindDenominator(num_groups, work.rank, sink, shared);
    }
    ClusterArriveRelaxed();
    ClusterWait();
  }
#endif
}

}  // namespace

void LaunchSparseAttentionToken(const SparseAttentionArgs& args, float scale, cudaStream_t stream) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(TokenShared));
  CUDA_CHECK(cudaFuncSetAttribute(TokenAttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes));
  CUDA_CHECK(cudaFuncSetAttribute(TokenAttentionKernel,
                                  cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  LaunchOverlapped(TokenAttentionKernel,
                   {.blocks = args.num_tokens * head_groups * Tile::kBlocks,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = Tile::kBlocks},
                   stream, args, MakeQueryMap(args, Tile::kHeads), scale);
}

}  // namespace lodestone::cuda

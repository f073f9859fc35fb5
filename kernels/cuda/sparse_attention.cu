// Sparse attention on the tensor cores (sm_90a): SparseAttentionParams in kernels/op_params.h. For
// bf16 latents of 512 dims; decode and prefill are the same kernel.
//
// One thread block: one token, 64 heads, one split of its keys, 64 keys a step. Three warpgroups:
// the first computes scores, probabilities and the dims 0..255 of the output; the second the dims
// 256..511; the third gathers keys, two steps ahead, row by row. Keys serve as K and, read by their
// columns, as V. With several splits a second kernel joins them and adds the sink.
//
// Bound in decode: 1,024 bytes a key and 128 KiB of queries and outputs a token; in prefill 131,072
// FLOP a key at 64 heads, and the gather through L2 close behind. docs/benchmarks.md has the
// measured shares.

#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensor_map.h"

namespace lodestone::cuda {
namespace {

struct AttentionTile {
  static constexpr int kHeads = kAttentionHeads;
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = 512;
  static constexpr int kBuffers = 2;
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 3 * kGroupThreads;
  static constexpr int kSlices = kDims / 64;        // of 64 dims: 128 bytes a row
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kMaxRopePairs = 128;
  static_assert(kHeads == 64 && kKeys == 64, "rows of queries, keys and probabilities");
};
using Tile = AttentionTile;

// Rows are swizzled as device/wgmma.cuh describes.
struct alignas(1024) AttentionShared {
  uint8_t query[Tile::kSlices][Tile::kSliceBytes];
  uint8_t keys[Tile::kBuffers][Tile::kSlices][Tile::kSliceBytes];
  uint8_t probs[Tile::kSliceBytes];  // bf16 [heads][keys]
  float rescale[Tile::kHeads];       // factor of the sums before this step
  float inverse[Tile::kHeads];       // 1 / denominator
  float2 angles[Tile::kMaxRopePairs];
  uint64_t query_full;
  uint64_t full[Tile::kBuffers];
  uint64_t empty[Tile::kBuffers];
};

enum NamedBarrier : int { kProbsReady = 1, kProbsFree = 2, kInverseReady = 3 };
constexpr int kMathThreads = 2 * Tile::kGroupThreads;

struct AttentionMaps {
  CUtensorMap query;  // bf16 [T * H, 512], 64 x 64 a box
};

// Partial results of a split, [T * H, splits]: unnormalised sums, and (largest score in units of
// log2, sum of probabilities); the sum is 0 where the split has no keys.
struct PartialView {
  float* sums;    // [T * H, splits, d]
  float2* stats;  // [T * H, splits]
};
__host__ __device__ PartialView PartialOf(const SparseAttentionArgs& args, int splits) {
  const int64_t rows = args.num_tokens * args.num_heads * splits;
  float* const sums = static_cast<float*>(args.scratch);
  return {sums, reinterpret_cast<float2*>(sums + (rows * args.head_dim + 63) / 64 * 64)};
}

struct BlockWork {
  int64_t token;
  int head;  // first of this block
  int split;
  int first_step;
  int end_step;
};

// Blocks of one token are neighbours: its head groups, and the splits of each.
__device__ int64_t TokenOfBlock(const SparseAttentionArgs& args, const SparseAttentionTile& tile) {
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  return blockIdx.x / (head_groups * tile.split.splits);
}

__device__ BlockWork FindWork(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                              int64_t token, const TokenKeys& keys) {
  const int steps = (keys.size() + Tile::kKeys - 1) / Tile::kKeys;
  const int head_groups = static_cast<int>((args.num_heads + Tile::kHeads - 1) / Tile::kHeads);
  BlockWork work;
  work.token = token;
  work.split = static_cast<int>(blockIdx.x % tile.split.splits);
  work.head = static_cast<int>(blockIdx.x / tile.split.splits % head_groups * Tile::kHeads);
  work.first_step = min(work.split * tile.split.steps_per_split, steps);
  work.end_step = work.split + 1 == tile.split.splits
                      ? steps
                      : min(work.first_step + tile.split.steps_per_split, steps);
  return work;
}

// The loading warpgroup: keys of all steps; each warp 16 rows of a step.
__device__ void GatherKeys(const SparseAttentionArgs& args, const TokenKeys& keys,
                           const BlockWork& work, AttentionShared& shared) {
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % Tile::kGroupThreads / 32 * 16;
  const auto find_row = [&](int step) -> const uint8_t* {
    const int index = step * Tile::kKeys + first_row + lane % 16;
    if (step >= work.end_step || index >= keys.size()) return nullptr;
    return FindKeyRow(args, keys, work.token, index).payload;
  };
  const uint8_t* my_row = find_row(work.first_step);
  for (int step = work.first_step; step < work.end_step; ++step) {
    const uint8_t* const next_row = find_row(step + 1);
    const int number = step - work.first_step;
    const int buffer = number % Tile::kBuffers;
    BarrierWait(&shared.empty[buffer], (number / Tile::kBuffers + 1) % 2);
    const uint32_t base = SharedAddress(shared.keys[buffer]) + lane / 8 * Tile::kSliceBytes;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const int row = first_row + i;
      const uint64_t address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(my_row), i);
      const uint32_t to = base + row * 128 + ((lane % 8) ^ (row % 8)) * 16;
      // A missing key is a row of zeros; its probability is 0.
      const uint8_t* const from =
          reinterpret_cast<const uint8_t*>(address == 0 ? reinterpret_cast<uint64_t>(args.q)
                                                        : address);
      const uint32_t bytes = address == 0 ? 0 : 16;
      CopyAsync16(to, from + lane * 16, bytes);
      CopyAsync16(to + 4 * Tile::kSliceBytes, from + 512 + lane * 16, bytes);
    }
    CopyAsyncArrive(&shared.full[buffer]);
    my_row = next_row;
  }
}

// scores[64 heads, 64 keys] of the keys in `buffer`.
__device__ void ScoreKeys(AttentionShared& shared, int buffer, float (&scores)[32]) {
  const uint32_t query = SharedAddress(shared.query);
  const uint32_t keys = SharedAddress(shared.keys[buffer]);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < Tile::kDims / 16; ++step) {
    const uint32_t at = step / 4 * Tile::kSliceBytes + step % 4 * 32;
    WgmmaSharedA(scores, RowTileDescriptor(query + at), RowTileDescriptor(keys + at), step != 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(scores);
}

struct RowStats {
  float largest[2];  // of the scores so far, times scale; rows r and r + 8
  float sum[2];      // of this thread's probabilities so far
};

// scores become probabilities, packed as the A operand of 4 k-steps; rescale[2]: what the sums so far
// must be multiplied by. `scale` is d^-1/2 log2(e).
__device__ void ToProbabilities(float (&scores)[32], int valid_keys, float scale, RowStats& stats,
                                uint32_t (&probs)[4][4], float (&rescale)[2]) {
  const int pair = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int key = i / 4 * 8 + 2 * pair + i % 2;
    scores[i] = key < valid_keys ? scores[i] * scale : -INFINITY;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = stats.largest[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      largest = fmaxf(largest, fmaxf(scores[4 * i + 2 * row], scores[4 * i + 2 * row + 1]));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    rescale[row] = exp2f(stats.largest[row] - largest);
    stats.largest[row] = largest;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& low = scores[4 * i + 2 * row];
      float& high = scores[4 * i + 2 * row + 1];
      low = exp2f(low - largest);
      high = exp2f(high - largest);
      sum += low + high;
      probs[i / 2][i % 2 * 2 + row] = PackBf16(low, high);
    }
    stats.sum[row] = stats.sum[row] * rescale[row] + sum;
  }
}

// Probabilities and factors for the other warpgroup.
__device__ void ShareProbabilities(const uint32_t (&probs)[4][4], const float (&rescale)[2],
                                   AttentionShared& shared) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const int pair = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int to_row = row + 8 * (i % 2);
    const int unit = (i / 2) ^ (row % 8);
    *reinterpret_cast<uint32_t*>(shared.probs + to_row * 128 + unit * 16 + pair * 4) =
        probs[i / 4][i % 4];
  }
  if (pair == 0) {
    shared.rescale[row] = rescale[0];
    shared.rescale[row + 8] = rescale[1];
  }
  SharedProxyFence();
}

__device__ void RescaleSums(float (&sums)[128], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i] *= factor[i / 2 % 2];
}

// Stores this thread's sums of rows `row` and `row` + 8, dims `first_dim`..+255: divided and rotated
// back, or as they are for the joining kernel.
__device__ void StoreSums(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                          const BlockWork& work, int first_dim, const float (&sums)[128],
                          const AttentionShared& shared) {
  const int row = threadIdx.x % Tile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  const int rope_first = Tile::kDims - static_cast<int>(args.rope_dims);
  const PartialView partial = PartialOf(args, tile.split.splits);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = work.head + row + 8 * j;
    if (head >= args.num_heads) continue;
    const int64_t out_row = work.token * args.num_heads + head;
    const float inverse = tile.split.splits == 1 ? shared.inverse[row + 8 * j] : 1.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int dim = first_dim + 8 * i + 2 * (threadIdx.x % 4);
      float2 pair = {sums[4 * i + 2 * j], sums[4 * i + 2 * j + 1]};
      if (tile.split.splits > 1) {
        const int64_t at = (out_row * tile.split.splits + work.split) * Tile::kDims + dim;
        *reinterpret_cast<float2*>(partial.sums + at) = pair;
        continue;
      }
      uint32_t rounded = PackBf16(pair.x * inverse, pair.y * inverse);
      if (dim >= rope_first) {
        pair = RotateBack(Bf16ToFloat(static_cast<uint16_t>(rounded)),
                          Bf16ToFloat(static_cast<uint16_t>(rounded >> 16)),
                          shared.angles[(dim - rope_first) / 2]);
        rounded = PackBf16(pair.x, pair.y);
      }
      *reinterpret_cast<uint32_t*>(args.out + out_row * Tile::kDims + dim) = rounded;
    }
  }
}

// 1 / denominator of each head, or the split's statistics.
__device__ void FinishStats(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                            const BlockWork& work, RowStats& stats, AttentionShared& shared) {
  constexpr float kLog2E = 1.4426950408889634f;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const PartialView partial = PartialOf(args, tile.split.splits);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    stats.sum[j] += __shfl_xor_sync(~0u, stats.sum[j], 1);
    stats.sum[j] += __shfl_xor_sync(~0u, stats.sum[j], 2);
    const int head = work.head + row + 8 * j;
    if (threadIdx.x % 4 != 0 || head >= args.num_heads) continue;
    if (tile.split.splits > 1) {
      const int64_t out_row = work.token * args.num_heads + head;
      partial.stats[out_row * tile.split.splits + work.split] = {stats.largest[j], stats.sum[j]};
    } else {
      const float sink = exp2f(args.sink[head] * kLog2E - stats.largest[j]);
      shared.inverse[row + 8 * j] = 1.0f / (stats.sum[j] + sink);
    }
  }
}

// First warpgroup: scores, probabilities, dims 0..255.
__device__ void AttendFirst(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                            const TokenKeys& keys, const BlockWork& work, float scale,
                            AttentionShared& shared) {
  RowStats stats = {{-INFINITY, -INFINITY}, {0, 0}};
  float sums[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i] = 0;
  BarrierWait(&shared.query_full, 0);
  for (int step = work.first_step; step < work.end_step; ++step) {
    const int number = step - work.first_step;
    const int buffer = number % Tile::kBuffers;
    BarrierWait(&shared.full[buffer], number / Tile::kBuffers % 2);
    SharedProxyFence();
    float scores[32];
    ScoreKeys(shared, buffer, scores);
    uint32_t probs[4][4];
    float rescale[2];
    ToProbabilities(scores, keys.size() - step * Tile::kKeys, scale, stats, probs, rescale);
    if (number > 0) NamedBarrierSync(kProbsFree, kMathThreads);
    ShareProbabilities(probs, rescale, shared);
    NamedBarrierArrive(kProbsReady, kMathThreads);
    RescaleSums(sums, rescale);
    const uint32_t values = SharedAddress(shared.keys[buffer]);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i) {
      WgmmaRegisterAColumns(sums, probs[i],
                            ColumnTileDescriptor(values + i * 16 * 128, Tile::kSliceBytes), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    HoldRegisters(sums);
    if (threadIdx.x == 0) BarrierArrive(&shared.empty[buffer]);
  }
  FinishStats(args, tile, work, stats, shared);
  NamedBarrierSync(kInverseReady, kMathThreads);
  StoreSums(args, tile, work, 0, sums, shared);
}

// Second warpgroup: dims 256..511.
__device__ void AttendSecond(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                             const BlockWork& work, AttentionShared& shared) {
  const int row = threadIdx.x % Tile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  float sums[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i] = 0;
  for (int step = work.first_step; step < work.end_step; ++step) {
    const int number = step - work.first_step;
    const int buffer = number % Tile::kBuffers;
    BarrierWait(&shared.full[buffer], number / Tile::kBuffers % 2);
    NamedBarrierSync(kProbsReady, kMathThreads);
    SharedProxyFence();
    const float rescale[2] = {shared.rescale[row], shared.rescale[row + 8]};
    RescaleSums(sums, rescale);
    const uint32_t probs = SharedAddress(shared.probs);
    const uint32_t values =
        SharedAddress(shared.keys[buffer]) + Tile::kSlices / 2 * Tile::kSliceBytes;
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i) {
      WgmmaSharedAColumns(sums, RowTileDescriptor(probs + i * 32),
                          ColumnTileDescriptor(values + i * 16 * 128, Tile::kSliceBytes), true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    HoldRegisters(sums);
    if (threadIdx.x % Tile::kGroupThreads == 0) BarrierArrive(&shared.empty[buffer]);
    if (step + 1 < work.end_step) NamedBarrierArrive(kProbsFree, kMathThreads);
  }
  NamedBarrierSync(kInverseReady, kMathThreads);
  StoreSums(args, tile, work, Tile::kDims / 2, sums, shared);
}

// A split without keys says so.
__device__ void StoreEmptySplit(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                                const BlockWork& work) {
  const int head = work.head + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= Tile::kHeads || head >= args.num_heads) return;
  const int64_t out_row = work.token * args.num_heads + head;
  PartialOf(args, tile.split.splits).stats[out_row * tile.split.splits + work.split] = {-INFINITY,
                                                                                        0};
}

// Barriers, the queries' copy and the angles.
__device__ void BeginBlock(const SparseAttentionArgs& args, const AttentionMaps& maps,
                           const BlockWork& work, int32_t position, AttentionShared& shared) {
  if (threadIdx.x == 0) {
    BarrierInit(&shared.query_full, 1);
    for (int i = 0; i < Tile::kBuffers; ++i) {
      BarrierInit(&shared.full[i], Tile::kGroupThreads);
      BarrierInit(&shared.empty[i], 2);
    }
    BarrierInitFence();
    BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
    for (int i = 0; i < Tile::kSlices; ++i) {
      CopyBox2(shared.query[i], &maps.query, &shared.query_full, i * 64,
               static_cast<int>(work.token * args.num_heads + work.head));
    }
  }
  const int pair = static_cast<int>(threadIdx.x) - kMathThreads;
  if (pair >= 0 && pair < args.rope_dims / 2) {
    shared.angles[pair] = RopeAngle(position, args.freqs[pair]);
  }
  __syncthreads();
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    SparseAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                          const __grid_constant__ SparseAttentionTile tile,
                          const __grid_constant__ AttentionMaps maps, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<AttentionShared*>(smem);
  AllowNextKernel();
  const int64_t token = TokenOfBlock(args, tile);
  const TokenKeys keys = FindKeys(args, token);
  const BlockWork work = FindWork(args, tile, token, keys);
  if (work.first_step == work.end_step) {  // never the only split: a token attends to itself
    StoreEmptySplit(args, tile, work);
    return;
  }
  BeginBlock(args, maps, work, keys.position, shared);
  switch (threadIdx.x / Tile::kGroupThreads) {
    case 0:
      GrowRegisters<224>();
      AttendFirst(args, tile, keys, work, scale, shared);
      break;
    case 1:
      GrowRegisters<224>();
      AttendSecond(args, tile, work, shared);
      break;
    default:
      ShrinkRegisters<56>();
      GatherKeys(args, keys, work, shared);
  }
#endif
}

// Joins the splits of one head of one token; thread t has dims 4 t .. 4 t + 3.
__global__ void JoinSplitsKernel(const __grid_constant__ SparseAttentionArgs args, int splits) {
#if __CUDA_ARCH__ >= 900
  WaitForPreviousKernel();
#endif
  constexpr float kLog2E = 1.4426950408889634f;
  const int64_t out_row = blockIdx.x;
  const PartialView partial = PartialOf(args, splits);
  const float2* stats = partial.stats + out_row * splits;
  float largest = -INFINITY;
  for (int i = 0; i < splits; ++i) largest = fmaxf(largest, stats[i].x);
  float denominator = 0;
  float4 sum{};
  for (int i = 0; i < splits; ++i) {
    if (stats[i].y == 0) continue;
    const float factor = exp2f(stats[i].x - largest);
    denominator = fmaf(factor, stats[i].y, denominator);
    const float4 part = *reinterpret_cast<const float4*>(
        partial.sums + (out_row * splits + i) * Tile::kDims + 4 * threadIdx.x);
    sum.x = fmaf(factor, part.x, sum.x);
    sum.y = fmaf(factor, part.y, sum.y);
    sum.z = fmaf(factor, part.z, sum.z);
    sum.w = fmaf(factor, part.w, sum.w);
  }
  denominator += exp2f(args.sink[out_row % args.num_heads] * kLog2E - largest);
  const float inverse = 1.0f / denominator;
  uint32_t rounded[2] = {PackBf16(sum.x * inverse, sum.y * inverse),
                         PackBf16(sum.z * inverse, sum.w * inverse)};
  const int rope_first = Tile::kDims - static_cast<int>(args.rope_dims);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int dim = 4 * threadIdx.x + 2 * i;
    if (dim < rope_first) continue;
    const float2 angle = RopeAngle(args.positions[out_row / args.num_heads],
                                   args.freqs[(dim - rope_first) / 2]);
    const float2 pair = RotateBack(Bf16ToFloat(static_cast<uint16_t>(rounded[i])),
                                   Bf16ToFloat(static_cast<uint16_t>(rounded[i] >> 16)), angle);
    rounded[i] = PackBf16(pair.x, pair.y);
  }
  *reinterpret_cast<uint2*>(args.out + out_row * Tile::kDims + 4 * threadIdx.x) = {rounded[0],
                                                                                   rounded[1]};
}

void LaunchJoin(const SparseAttentionArgs& args, int splits, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {
      .gridDim = dim3(static_cast<unsigned>(args.num_tokens * args.num_heads)),
      .blockDim = dim3(Tile::kDims / 4),
      .dynamicSmemBytes = 0,
      .stream = stream,
      .attrs = &attribute,
      .numAttrs = 1};
  CUDA_CHECK(cudaLaunchKernelEx(&config, JoinSplitsKernel, args, splits));
}

}  // namespace

// kernels/cuda/sparse_attention_portable.cu
void LaunchSparseAttentionPortable(const SparseAttentionArgs& args, cudaStream_t stream);

SparseAttentionTile ChooseSparseAttentionTile(const SparseAttentionArgs& args, bool deterministic) {
  const bool fits = CurrentDevice().sm90 && args.format == KvFormat::kBf16 &&
                    args.head_dim == Tile::kDims && args.rope_dims <= 2 * Tile::kMaxRopePairs;
  if (!fits) return {};
  return {.path = AttentionPath::kTensorCore,
          .split = ChooseAttentionSplits(args.num_tokens, args.num_heads, args.max_keys,
                                         CurrentDevice().processors, deterministic)};
}

void LaunchSparseAttention(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                           cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  if (tile.path == AttentionPath::kPortable) {
    LaunchSparseAttentionPortable(args, stream);
    return;
  }
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kRootDims = 22.627416997969522;  // 512^1/2
  constexpr int kSharedBytes = static_cast<int>(sizeof(AttentionShared));
  const AttentionMaps maps = {MakeTensorMap(
      {.data = args.q,
       .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
       .rank = 2,
       .size = {Tile::kDims, static_cast<uint64_t>(args.num_tokens * args.num_heads)},
       .stride = {Tile::kDims * 2},
       .box = {64, Tile::kHeads},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B})};
  CUDA_CHECK(cudaFuncSetAttribute(SparseAttentionKernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  const dim3 grid(static_cast<unsigned>(args.num_tokens * head_groups * tile.split.splits));
  SparseAttentionKernel<<<grid, Tile::kThreads, kSharedBytes, stream>>>(
      args, tile, maps, static_cast<float>(kLog2E / kRootDims));
  CUDA_CHECK(cudaGetLastError());
  if (tile.split.splits > 1) LaunchJoin(args, tile.split.splits, stream);
}

}  // namespace lodestone::cuda

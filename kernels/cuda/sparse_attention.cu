// Sparse attention on the tensor cores (sm_90a): SparseAttentionParams in kernels/op_params.h. For
// bf16 latents of 512 dims, 64 of them rotary; decode and prefill are the same kernel.
//
// One thread block: one token, 64 heads, one split of its keys, 64 keys a step. Three warpgroups:
// the first computes scores, probabilities and the dims 0..255 of the output; the second the dims
// 256..511; the third gathers keys, two steps ahead, row by row. Keys serve as K and, read by their
// columns, as V. With several splits a second kernel joins them and adds the sink.
//
// Bound in decode: 1,024 bytes a key and 128 KiB of queries and outputs a token; in prefill 131,072
// FLOP a key at 64 heads, and the gather through L2 close behind. Measured on an H200 with 64 heads
// and 640 keys: 0.67 of it for 128 tokens in decode, 0.54 in prefill.

#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
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
  static constexpr int kSlices = kDims / 64;  // of 64 dims: 128 bytes a row
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kRopeDims = 64;  // the last ones: the second warpgroup has them
  static constexpr int kEntriesPerThread = 3;
  static_assert(kEntriesPerThread * kThreads >= kMaxTopK);
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
  float2 angles[Tile::kRopeDims / 2];
  int32_t entry_rows[kMaxTopK];  // ratio 4: page * 64 + row of each listed entry
  uint64_t query_full;
  uint64_t probs_full;
  uint64_t probs_empty;
  uint64_t full[Tile::kBuffers];
  uint64_t empty[Tile::kBuffers];
};

enum NamedBarrier : int { kStepsDone = 1, kOutReady = 2 };  // kOutReady: one for each half

struct AttentionMaps {
  CUtensorMap query;  // bf16 [T, H, 512], 64 dims x 64 heads a box
  CUtensorMap out;    // the same of the output
  CUtensorMap sums;   // f32 [T * splits, H, 512], 32 dims x 64 heads a box
};
constexpr int kSumsSlices =
    Tile::kDims / 32;  // of 128 bytes a row; they take the key buffers' place
static_assert(kSumsSlices * Tile::kSliceBytes == sizeof(AttentionShared::keys));

// Partial results of the splits: unnormalised sums, and (largest score in units of log2, sum of
// probabilities); the sum is 0 where the split has no keys.
struct PartialView {
  float* sums;    // [T, splits, H, d]
  float2* stats;  // [T, splits, H]
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

// Lists the rows of the chosen entries (ratio 4) and counts them. By all threads: their loads run
// beside those of FindKeys.
__device__ TokenKeys ListKeys(const SparseAttentionArgs& args, int64_t token,
                              AttentionShared& shared) {
  int32_t entries[Tile::kEntriesPerThread];
#pragma unroll
  for (int i = 0; i < Tile::kEntriesPerThread; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * Tile::kThreads;
    entries[i] = args.ratio == 4 && at < args.k ? args.top_entries[token * args.k + at] : -1;
  }
  TokenKeys keys = FindKeys(args, token);
  const int32_t* pages = args.block_table + keys.seq * args.max_pages;
#pragma unroll
  for (int i = 0; i < Tile::kEntriesPerThread; ++i) {
    if (entries[i] >= 0) {
      shared.entry_rows[threadIdx.x + i * Tile::kThreads] =
          pages[entries[i] / 64] * 64 + entries[i] % 64;
    }
    if (args.ratio == 4) keys.num_entries += __syncthreads_count(entries[i] >= 0);
  }
  return keys;
}

// The bytes of key `index` < keys.size().
__device__ const uint8_t* FindRow(const SparseAttentionArgs& args, const TokenKeys& keys, int index,
                                  const AttentionShared& shared) {
  if (index < keys.num_window) return FindWindowRow(args, keys, index).payload;
  const int listed = index - keys.num_window;
  if (args.ratio == 128) return FindEntryRow(args, keys, listed).payload;
  const int64_t row = shared.entry_rows[listed];
  return args.entries.payload + row / 64 * args.entries.payload_block_stride +
         row % 64 * (Tile::kDims * 2);
}

// The loading warpgroup: keys of all steps; each warp 16 rows of a step.
__device__ void GatherKeys(const SparseAttentionArgs& args, const TokenKeys& keys,
                           const BlockWork& work, AttentionShared& shared) {
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % Tile::kGroupThreads / 32 * 16;
  const auto find_row = [&](int step) -> const uint8_t* {
    const int index = step * Tile::kKeys + first_row + lane % 16;
    if (step >= work.end_step || index >= keys.size()) return nullptr;
    return FindRow(args, keys, index, shared);
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
      const uint8_t* const from = reinterpret_cast<const uint8_t*>(
          address == 0 ? reinterpret_cast<uint64_t>(args.q) : address);
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

// scores become probabilities, packed as the A operand of 4 k-steps; rescale[2]: what the sums so
// far must be multiplied by. `scale` is d^-1/2 log2(e).
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

// This thread's results of one half of the dims, divided, rotated back and rounded, to where the
// queries were.
template <int kHalf>
__device__ void StageOut(const float (&sums)[128], AttentionShared& shared) {
  constexpr int kFirstRope = kHalf == 1 ? (Tile::kDims / 2 - Tile::kRopeDims) / 8 : 32;
  const int row = threadIdx.x % Tile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  const int pair = threadIdx.x % 4;
  uint8_t* const slices = shared.query[kHalf * Tile::kSlices / 2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float inverse = shared.inverse[row + 8 * j];
#pragma unroll
    for (int i = 0; i < 32; ++i) {  // blocks of 8 dims
      uint32_t rounded = PackBf16(sums[4 * i + 2 * j] * inverse, sums[4 * i + 2 * j + 1] * inverse);
      if (i >= kFirstRope) {
        const float2 rotated = RotateBack(Bf16ToFloat(static_cast<uint16_t>(rounded)),
                                          Bf16ToFloat(static_cast<uint16_t>(rounded >> 16)),
                                          shared.angles[(i - kFirstRope) * 4 + pair]);
        rounded = PackBf16(rotated.x, rotated.y);
      }
      const int unit = (i % 8) ^ (row % 8);
      *reinterpret_cast<uint32_t*>(slices + i / 8 * Tile::kSliceBytes + (row + 8 * j) * 128 +
                                   unit * 16 + pair * 4) = rounded;
    }
  }
}

// The same for a split: sums as they are, to where the keys were.
template <int kHalf>
__device__ void StageSums(const float (&sums)[128], AttentionShared& shared) {
  const int row = threadIdx.x % Tile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  const int pair = threadIdx.x % 4;
  uint8_t* const slices = shared.keys[0][kHalf * kSumsSlices / 2];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int block = i / 2;  // of 8 dims
    const int unit = (block % 4 * 2 + pair / 2) ^ (row % 8);
    uint8_t* const to = slices + block / 4 * Tile::kSliceBytes + (row + 8 * (i % 2)) * 128 +
                        unit * 16 + pair % 2 * 8;
    *reinterpret_cast<float2*>(to) = {sums[2 * i], sums[2 * i + 1]};
  }
}

// Stores what both warpgroups have staged. By one thread of each: half the slices.
__device__ void StoreStaged(const SparseAttentionTile& tile, const AttentionMaps& maps,
                            const BlockWork& work, int half, const AttentionShared& shared) {
  if (tile.split.splits == 1) {
    for (int i = half * Tile::kSlices / 2; i < (half + 1) * Tile::kSlices / 2; ++i) {
      StoreBox3(&maps.out, shared.query[i], i * 64, work.head, static_cast<int>(work.token));
    }
  } else {
    const int plane = static_cast<int>(work.token) * tile.split.splits + work.split;
    for (int i = half * kSumsSlices / 2; i < (half + 1) * kSumsSlices / 2; ++i) {
      StoreBox3(&maps.sums, shared.keys[0][i], i * 32, work.head, plane);
    }
  }
  WaitForStores();
}

// Stages and stores one warpgroup's half of the dims. Waits for the other warpgroups first: buffers
// are free, angles and denominators there.
template <int kHalf>
__device__ void FinishHalf(const SparseAttentionTile& tile, const AttentionMaps& maps,
                           const BlockWork& work, const float (&sums)[128],
                           AttentionShared& shared) {
  NamedBarrierSync(kStepsDone, Tile::kThreads);
  if (tile.split.splits == 1) {
    StageOut<kHalf>(sums, shared);
  } else {
    StageSums<kHalf>(sums, shared);
  }
  SharedProxyFence();
  NamedBarrierSync(kOutReady + kHalf, Tile::kGroupThreads);
  if (threadIdx.x % Tile::kGroupThreads == 0) StoreStaged(tile, maps, work, kHalf, shared);
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
      const int64_t plane = work.token * tile.split.splits + work.split;
      partial.stats[plane * args.num_heads + head] = {stats.largest[j], stats.sum[j]};
    } else {
      const float sink = exp2f(args.sink[head] * kLog2E - stats.largest[j]);
      shared.inverse[row + 8 * j] = 1.0f / (stats.sum[j] + sink);
    }
  }
}

// First warpgroup: scores, probabilities, dims 0..255.
__device__ void AttendFirst(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                            const AttentionMaps& maps, const TokenKeys& keys, const BlockWork& work,
                            float scale, AttentionShared& shared) {
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
    BarrierWait(&shared.probs_empty, (number + 1) % 2);
    ShareProbabilities(probs, rescale, shared);
    BarrierArrive(&shared.probs_full);
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
  FinishHalf<0>(tile, maps, work, sums, shared);
}

// Second warpgroup: dims 256..511.
__device__ void AttendSecond(const SparseAttentionTile& tile, const AttentionMaps& maps,
                             const BlockWork& work, AttentionShared& shared) {
  const int row = threadIdx.x % Tile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  float sums[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i] = 0;
  for (int step = work.first_step; step < work.end_step; ++step) {
    const int number = step - work.first_step;
    const int buffer = number % Tile::kBuffers;
    BarrierWait(&shared.full[buffer], number / Tile::kBuffers % 2);
    BarrierWait(&shared.probs_full, number % 2);
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
    BarrierArrive(&shared.probs_empty);
  }
  FinishHalf<1>(tile, maps, work, sums, shared);
}

// A split without keys says so.
__device__ void StoreEmptySplit(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                                const BlockWork& work) {
  const int head = work.head + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= Tile::kHeads || head >= args.num_heads) return;
  const int64_t plane = work.token * tile.split.splits + work.split;
  PartialOf(args, tile.split.splits).stats[plane * args.num_heads + head] = {-INFINITY, 0};
}

// The angles of the output's rotation, by the loading warpgroup once its copies are on the way.
__device__ void FindAngles(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                           int32_t position, AttentionShared& shared) {
  const int pair = threadIdx.x % Tile::kGroupThreads;
  if (tile.split.splits == 1 && pair < Tile::kRopeDims / 2) {
    shared.angles[pair] = RopeAngle(position, args.freqs[pair]);
  }
  NamedBarrierArrive(kStepsDone, Tile::kThreads);
}

// Barriers; then the queries' copy. By one thread.
__device__ void BeginBlock(AttentionShared& shared) {
  BarrierInit(&shared.query_full, 1);
  BarrierInit(&shared.probs_full, Tile::kGroupThreads);
  BarrierInit(&shared.probs_empty, Tile::kGroupThreads);
  for (int i = 0; i < Tile::kBuffers; ++i) {
    BarrierInit(&shared.full[i], Tile::kGroupThreads);
    BarrierInit(&shared.empty[i], 2);
  }
  BarrierInitFence();
}
__device__ void LoadQuery(const AttentionMaps& maps, const BlockWork& work,
                          AttentionShared& shared) {
  BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
  for (int i = 0; i < Tile::kSlices; ++i) {
    CopyBox3(shared.query[i], &maps.query, &shared.query_full, i * 64, work.head,
             static_cast<int>(work.token));
  }
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    SparseAttentionKernel(const __grid_constant__ SparseAttentionArgs args,
                          const __grid_constant__ SparseAttentionTile tile,
                          const __grid_constant__ AttentionMaps maps, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<AttentionShared*>(smem);
  if (threadIdx.x == 0) BeginBlock(shared);
  WaitForPreviousKernel();
  AllowNextKernel();
  const int64_t token = TokenOfBlock(args, tile);
  const TokenKeys keys = ListKeys(args, token, shared);
  const BlockWork work = FindWork(args, tile, token, keys);
  if (work.first_step == work.end_step) {  // never the only split: a token attends to itself
    StoreEmptySplit(args, tile, work);
    return;
  }
  if (threadIdx.x == 0) LoadQuery(maps, work, shared);
  __syncthreads();
  switch (threadIdx.x / Tile::kGroupThreads) {
    case 0:
      GrowRegisters<224>();
      AttendFirst(args, tile, maps, keys, work, scale, shared);
      break;
    case 1:
      GrowRegisters<224>();
      AttendSecond(tile, maps, work, shared);
      break;
    default:
      ShrinkRegisters<56>();
      GatherKeys(args, keys, work, shared);
      FindAngles(args, tile, keys.position, shared);
  }
#endif
}

// Joins the splits of one head of one token; thread t has dims 4 t .. 4 t + 3.
__global__ void __launch_bounds__(Tile::kDims / 4)
    JoinSplitsKernel(const __grid_constant__ SparseAttentionArgs args, int splits) {
#if __CUDA_ARCH__ >= 900
  WaitForPreviousKernel();
  AllowNextKernel();
#endif
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kAtOnce = 8;  // loads in flight
  const int64_t token = blockIdx.x / args.num_heads;
  const int64_t head = blockIdx.x % args.num_heads;
  const PartialView partial = PartialOf(args, splits);
  const float2* stats = partial.stats + token * splits * args.num_heads + head;
  const float* sums = partial.sums + (token * splits * args.num_heads + head) * Tile::kDims;
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = 0; i < splits; ++i) largest = fmaxf(largest, stats[i * args.num_heads].x);
  float denominator = exp2f(args.sink[head] * kLog2E - largest);
  float4 sum{};
  for (int first = 0; first < splits; first += kAtOnce) {
    float2 stat[kAtOnce];
    float4 part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      stat[i] = first + i < splits ? stats[(first + i) * args.num_heads] : float2{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      part[i] = float4{};
      if (stat[i].y != 0) {
        part[i] = *reinterpret_cast<const float4*>(
            sums + (first + i) * args.num_heads * Tile::kDims + 4 * threadIdx.x);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (stat[i].y == 0) continue;
      const float factor = exp2f(stat[i].x - largest);
      denominator = fmaf(factor, stat[i].y, denominator);
      sum.x = fmaf(factor, part[i].x, sum.x);
      sum.y = fmaf(factor, part[i].y, sum.y);
      sum.z = fmaf(factor, part[i].z, sum.z);
      sum.w = fmaf(factor, part[i].w, sum.w);
    }
  }
  const float inverse = 1.0f / denominator;
  uint32_t rounded[2] = {PackBf16(sum.x * inverse, sum.y * inverse),
                         PackBf16(sum.z * inverse, sum.w * inverse)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int dim = 4 * threadIdx.x + 2 * i;
    if (dim < Tile::kDims - Tile::kRopeDims) continue;
    const int rope_pair = (dim - (Tile::kDims - Tile::kRopeDims)) / 2;
    const float2 angle = RopeAngle(args.positions[token], args.freqs[rope_pair]);
    const float2 pair = RotateBack(Bf16ToFloat(static_cast<uint16_t>(rounded[i])),
                                   Bf16ToFloat(static_cast<uint16_t>(rounded[i] >> 16)), angle);
    rounded[i] = PackBf16(pair.x, pair.y);
  }
  *reinterpret_cast<uint2*>(args.out + int64_t{blockIdx.x} * Tile::kDims + 4 * threadIdx.x) = {
      rounded[0], rounded[1]};
}

// [planes, H, 512] in device memory, boxes of 128 bytes x 64 heads.
CUtensorMap MakeHeadMap(const void* data, CUtensorMapDataType type, int64_t element_bytes,
                        int64_t num_heads, int64_t planes) {
  const uint64_t row_bytes = static_cast<uint64_t>(Tile::kDims * element_bytes);
  return MakeTensorMap(
      {.data = data,
       .type = type,
       .rank = 3,
       .size = {Tile::kDims, static_cast<uint64_t>(num_heads), static_cast<uint64_t>(planes)},
       .stride = {row_bytes, row_bytes * static_cast<uint64_t>(num_heads)},
       .box = {static_cast<uint32_t>(128 / element_bytes), Tile::kHeads, 1},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

AttentionMaps MakeMaps(const SparseAttentionArgs& args, int splits) {
  constexpr auto kBf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  AttentionMaps maps = {.query = MakeHeadMap(args.q, kBf16, 2, args.num_heads, args.num_tokens),
                        .out = MakeHeadMap(args.out, kBf16, 2, args.num_heads, args.num_tokens),
                        .sums = {}};
  if (splits > 1) {
    maps.sums = MakeHeadMap(args.scratch, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, args.num_heads,
                            args.num_tokens * splits);
  }
  return maps;
}

}  // namespace

// kernels/cuda/sparse_attention_portable.cu
void LaunchSparseAttentionPortable(const SparseAttentionArgs& args, cudaStream_t stream);

SparseAttentionTile ChooseSparseAttentionTile(const SparseAttentionArgs& args, bool deterministic) {
  const bool fits = CurrentDevice().sm90 && args.format == KvFormat::kBf16 &&
                    args.head_dim == Tile::kDims && args.rope_dims == Tile::kRopeDims;
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
  CUDA_CHECK(cudaFuncSetAttribute(SparseAttentionKernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  RequireArgument(args.k <= kMaxTopK, "LaunchSparseAttention", "k exceeds 1024", args.k);
  const int64_t head_groups = (args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  LaunchOverlapped(SparseAttentionKernel,
                   {.blocks = args.num_tokens * head_groups * tile.split.splits,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes},
                   stream, args, tile, MakeMaps(args, tile.split.splits),
                   static_cast<float>(kLog2E / kRootDims));
  if (tile.split.splits > 1) {
    LaunchOverlapped(JoinSplitsKernel,
                     {.blocks = args.num_tokens * args.num_heads, .threads = Tile::kDims / 4},
                     stream, args, tile.split.splits);
  }
}

}  // namespace lodestone::cuda

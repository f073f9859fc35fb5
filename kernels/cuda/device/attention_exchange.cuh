#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// What the blocks of a cluster tell each other in sparse attention: each computes the probabilities
// of some steps of 64 keys, all need those of all steps.
namespace lodestone::cuda {

// Probabilities of all steps and the statistics of their rows, each where the lane finds it that
// needs it: the words of an A operand (device/wgmma.cuh), reference and sum of rows r and r + 8.
template <int kHeads, int kMaxSteps>
struct StepResults {
  static constexpr int kTiles = kHeads / 16;   // of 16 heads; warp w of a warpgroup has w % kTiles
  static constexpr int kTileBytes = 16 * 128;  // 64 keys each
  static constexpr int kStepBytes = kTiles * (kTileBytes + 8 * static_cast<int>(sizeof(float4)));
  struct alignas(1024) Step {
    uint4 probs[kTiles][4][32];  // [tile][16 keys][lane]
    float4 stats[kTiles][8];     // [tile][r]
  };
  Step steps[kMaxSteps];
  __device__ static int Tile() { return static_cast<int>(threadIdx.x % 128 / 32) % kTiles; }
};

// Queries of up to 64 heads, [8 slices of 64 dims][kHeads] rows of 128 bytes, as A operands; rows
// beyond kHeads repeat the first ones. By a warpgroup.
using HeadQuery = uint32_t[32][4];
template <int kHeads>
__device__ inline void LoadHeadQuery(const void* slices, HeadQuery& query) {
  const int row = (threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16) % kHeads;
  const uint32_t from = SharedAddress(slices) + row * 128;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int unit = (i % 4 * 2 + threadIdx.x % 32 / 16) ^ (row % 8);
    LoadMatrices(query[i], from + i / 4 * (kHeads * 128) + unit * 16);
  }
}

// scores[64 heads, 64 keys]; `keys` [8 slices of 64 dims][64] rows of 128 bytes, which come in
// kPieces parts of the dims: `full` has a barrier for each. By a warpgroup.
template <int kPieces>
__device__ inline void ScoreStep(const HeadQuery& query, const void* keys, uint64_t* full,
                                 uint32_t parity, float (&scores)[32]) {
  constexpr int kProducts = 32 / kPieces;
  const uint64_t base = RowTileDescriptor(SharedAddress(keys));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    BarrierWait(&full[piece], parity);
    SharedProxyFence();
    WgmmaFence();
#pragma unroll
    for (int i = piece * kProducts; i < (piece + 1) * kProducts; ++i) {
      WgmmaRegisterA(scores, query[i], AdvanceTile(base, i / 4 * (64 * 128) + i % 4 * 32), i != 0);
    }
    WgmmaCommit();
  }
  WgmmaWait<0>();
  HoldRegisters(scores);
}

// Stores a step's result as number `at` of `results`. By a warpgroup.
template <int kHeads, int kSteps>
__device__ inline void StoreResult(const uint32_t (&probs)[4][4], const RowStats& stats, int at,
                                   StepResults<kHeads, kSteps>& results) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile = static_cast<int>(threadIdx.x % 128 / 32);
  if (tile >= results.kTiles) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    results.steps[at].probs[tile][i][lane] = {probs[i][0], probs[i][1], probs[i][2], probs[i][3]};
  }
  if (lane % 4 == 0) {
    results.steps[at].stats[tile][lane / 4] = {stats.reference[0], stats.sum[0], stats.reference[1],
                                               stats.sum[1]};
  }
}
// Copies number `at` of a block's own to the results of all other blocks, where it counts for
// `full`. By a warpgroup that has met at a barrier since, each thread behind SharedProxyFence().
template <int kBlocks, int kHeads, int kOwnSteps, int kMaxSteps>
__device__ inline void CopyResult(const StepResults<kHeads, kOwnSteps>& own, int at, int rank,
                                  int step, const StepResults<kHeads, kMaxSteps>& results,
                                  const uint64_t* full) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int turn = static_cast<int>(threadIdx.x % 128 / 32) + lane * 4;
  if (turn >= kBlocks - 1) return;
  const int peer = (rank + 1 + turn) % kBlocks;  // each begins with another one
  CopyToPeer(ClusterAddress(&results.steps[step], peer), &own.steps[at], own.kStepBytes,
             ClusterAddress(full, peer));
}

// The same for few blocks, from registers to all kBlocks, this one too. By a warpgroup; the warps
// that have the same heads share the blocks.
template <int kBlocks, int kHeads, int kMaxSteps>
__device__ inline void SendResult(const uint32_t (&probs)[4][4], const RowStats& stats, int rank,
                                  int step, const StepResults<kHeads, kMaxSteps>& results,
                                  const uint64_t* full) {
  using Results = StepResults<kHeads, kMaxSteps>;
  constexpr int kSenders = 4 / Results::kTiles;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile = Results::Tile();
  const float4 row_stats = {stats.reference[0], stats.sum[0], stats.reference[1], stats.sum[1]};
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x % 128 / 32) / Results::kTiles; i < kBlocks;
       i += kSenders) {
    const int peer = (i + rank) % kBlocks;  // each begins with another one
    const uint32_t barrier = ClusterAddress(full, peer);
    const uint32_t to = ClusterAddress(&results.steps[step].probs[tile][0][lane], peer);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      StoreAsync(to + j * static_cast<uint32_t>(sizeof(results.steps[0].probs[0][0])), probs[j],
                 barrier);
    }
    if (lane % 4 == 0) {
      StoreAsync(ClusterAddress(&results.steps[step].stats[tile][lane / 4], peer), row_stats,
                 barrier);
    }
  }
}

// Rows r and r + 8 of this thread over all steps: what sparse_attention_blocks.cu finds step by
// step. Some steps at a time, so that their loads overlap.
inline constexpr int kStepsAtOnce = 5;
struct RowReferences {
  float reference[2];
};
template <int kHeads, int kMaxSteps>
__device__ inline float4 StatsOf(const StepResults<kHeads, kMaxSteps>& results, int num_steps,
                                 int step) {
  if (step >= num_steps) return {-INFINITY, 0, -INFINITY, 0};
  return results.steps[step].stats[results.Tile()][threadIdx.x % 32 / 4];
}
template <int kHeads, int kMaxSteps>
__device__ inline RowReferences JoinReferences(const StepResults<kHeads, kMaxSteps>& results,
                                               int num_steps) {
  RowReferences rows = {{-INFINITY, -INFINITY}};
#pragma unroll 1
  for (int first = 0; first < num_steps; first += kStepsAtOnce) {
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
      const float4 stats = StatsOf(results, num_steps, first + i);
      rows.reference[0] = fmaxf(rows.reference[0], stats.x);
      rows.reference[1] = fmaxf(rows.reference[1], stats.z);
    }
  }
  return rows;
}
// 1 / denominator of these rows.
template <int kHeads, int kMaxSteps>
__device__ inline void JoinSums(const StepResults<kHeads, kMaxSteps>& results, int num_steps,
                                const RowReferences& rows, const float (&sink)[2],
                                float (&inverse)[2]) {
  float sums[2] = {};
#pragma unroll 1
  for (int first = 0; first < num_steps; first += kStepsAtOnce) {
#pragma unroll
    for (int i = 0; i < kStepsAtOnce; ++i) {
      const float4 stats = StatsOf(results, num_steps, first + i);
      sums[0] = fmaf(stats.y, PowerOfTwo(stats.x - rows.reference[0]), sums[0]);
      sums[1] = fmaf(stats.w, PowerOfTwo(stats.z - rows.reference[1]), sums[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    inverse[i] = InverseDenominator(sums[i], SinkTerm(sink[i], rows.reference[i]));
  }
}

// The A operands of one step: its probabilities with the references of all steps. By a warp that
// has the step's tile of heads; rows beyond kHeads repeat the first ones.
template <int kHeads, int kMaxSteps>
__device__ inline void LoadProbabilities(const StepResults<kHeads, kMaxSteps>& results, int step,
                                         const RowReferences& rows, uint32_t (&probs)[4][4]) {
  const int tile = results.Tile();
  const float4 stats = results.steps[step].stats[tile][threadIdx.x % 32 / 4];
  const float powers[2] = {PowerOfTwo(stats.x - rows.reference[0]),
                           PowerOfTwo(stats.z - rows.reference[1])};
  const uint32_t factors[2] = {PackBf16(powers[0], powers[0]), PackBf16(powers[1], powers[1])};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 words = results.steps[step].probs[tile][i][threadIdx.x % 32];
    probs[i][0] = MultiplyBf16x2(words.x, factors[0]);
    probs[i][1] = MultiplyBf16x2(words.y, factors[1]);
    probs[i][2] = MultiplyBf16x2(words.z, factors[0]);
    probs[i][3] = MultiplyBf16x2(words.w, factors[1]);
  }
}

// Brings the probabilities of all steps to the references of all, in their place but as row tiles
// of wgmma: a step has kHeads rows of 128 bytes. By a warpgroup; the warps that have the same heads
// share the steps.
template <int kHeads, int kMaxSteps>
__device__ inline void ScaleProbabilities(StepResults<kHeads, kMaxSteps>& results, int num_steps,
                                          const RowReferences& rows) {
  using Results = StepResults<kHeads, kMaxSteps>;
  constexpr int kAtOnce = 3;
  constexpr int kSharers = 4 / Results::kTiles;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane % 16;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x % 128 / 32) / Results::kTiles; first < num_steps;
       first += kAtOnce * kSharers) {
    uint32_t probs[kAtOnce][4][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int step = first + i * kSharers;
      LoadProbabilities(results, step < num_steps ? step : first, rows, probs[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int step = first + i * kSharers;
      if (step >= num_steps) break;
      const uint32_t to = SharedAddress(results.steps[step].probs[results.Tile()]) + row * 128;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        StoreMatrices(to + ((2 * j + lane / 16) ^ (row % 8)) * 16, probs[i][j][0], probs[i][j][1],
                      probs[i][j][2], probs[i][j][3]);
      }
    }
  }
  SharedProxyFence();
}

}  // namespace lodestone::cuda

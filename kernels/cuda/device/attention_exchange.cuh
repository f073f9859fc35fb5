#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// What the blocks of a cluster tell each other in sparse attention: each computes the probabilities
// of some steps of 64 keys, all need those of all steps.
namespace lodestone::cuda {

// Probabilities of one step, rows swizzled like a row tile of wgmma, and the statistics of its
// rows: reference and sum.
template <int kHeads>
struct StepResult {
  uint8_t probs[kHeads * 128];
  float2 stats[kHeads];
};

// How a step's probabilities meet the references of all steps.
template <int kHeads, int kMaxSteps>
struct JoinedStats {
  uint32_t factors[kMaxSteps][kHeads];  // bf16 x 2
  float inverse[kHeads];                // 1 / denominator
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

// scores[64 heads, 64 keys]; `keys` [8 slices of 64 dims][64] rows of 128 bytes. By a warpgroup.
__device__ inline void ScoreStep(const HeadQuery& query, const void* keys, float (&scores)[32]) {
  const uint64_t base = RowTileDescriptor(SharedAddress(keys));
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    WgmmaRegisterA(scores, query[i], AdvanceTile(base, i / 4 * (64 * 128) + i % 4 * 32), i != 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(scores);
}

// By a warpgroup.
template <int kHeads>
__device__ inline void StoreResult(const uint32_t (&probs)[4][4], const RowStats& stats,
                                   StepResult<kHeads>& result) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x % 128 / 32) * 16;
  const int row = first_row + lane % 16;
  if (first_row < kHeads) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int unit = (2 * i + lane / 16) ^ (row % 8);
      StoreMatrices(SharedAddress(result.probs) + row * 128 + unit * 16, probs[i][0], probs[i][1],
                    probs[i][2], probs[i][3]);
    }
    if (lane % 4 == 0) {
      result.stats[first_row + lane / 4] = {stats.reference[0], stats.sum[0]};
      result.stats[first_row + lane / 4 + 8] = {stats.reference[1], stats.sum[1]};
    }
  }
  SharedProxyFence();
}

// To the same place in all other blocks, where it completes on `full`. By a warpgroup that has
// stored the result and met at a barrier: one thread of each warp sends.
template <int kHeads>
__device__ inline void SendResult(const StepResult<kHeads>& result, uint64_t* full, int rank,
                                  int blocks) {
  if (threadIdx.x % 32 != 0) return;
  for (int peer = static_cast<int>(threadIdx.x % 128 / 32); peer < blocks; peer += 4) {
    if (peer == rank) continue;
    CopyToPeer(ClusterAddress(&result, peer), &result, sizeof(result), ClusterAddress(full, peer));
  }
}

// The references of head `row` in all steps; what they have in common is returned.
template <int kHeads, int kMaxSteps>
__device__ inline float LoadReferences(const StepResult<kHeads>* results, int num_steps, int row,
                                       float (&references)[kMaxSteps]) {
  float reference = -INFINITY;
#pragma unroll
  for (int step = 0; step < kMaxSteps; ++step) {
    references[step] = step < num_steps ? results[step].stats[row].x : -INFINITY;
    reference = fmaxf(reference, references[step]);
  }
  return reference;
}

// Head `row` over all steps: what sparse_attention_blocks.cu finds step by step.
template <int kHeads, int kMaxSteps>
__device__ inline void JoinFactors(const StepResult<kHeads>* results, int num_steps, int row,
                                   JoinedStats<kHeads, kMaxSteps>& joined) {
  float references[kMaxSteps];
  const float reference = LoadReferences(results, num_steps, row, references);
#pragma unroll
  for (int step = 0; step < kMaxSteps; ++step) {
    if (step >= num_steps) break;
    const float power = PowerOfTwo(references[step] - reference);
    joined.factors[step][row] = PackBf16(power, power);
  }
}
template <int kHeads, int kMaxSteps>
__device__ inline void JoinSums(const StepResult<kHeads>* results, int num_steps, int row,
                                float sink, JoinedStats<kHeads, kMaxSteps>& joined) {
  float references[kMaxSteps];
  const float reference = LoadReferences(results, num_steps, row, references);
  float sum = 0;
#pragma unroll
  for (int step = 0; step < kMaxSteps; ++step) {
    if (step >= num_steps) break;
    sum = fmaf(results[step].stats[row].y, PowerOfTwo(references[step] - reference), sum);
  }
  joined.inverse[row] = InverseDenominator(sum, SinkTerm(sink, reference));
}

// The A operands of one step: its probabilities with the references of all steps; zeros if it is
// not `present`. By a warpgroup; rows beyond kHeads repeat the first ones.
template <int kHeads>
__device__ inline void LoadProbabilities(const StepResult<kHeads>& result,
                                         const uint32_t (&factors)[kHeads], bool present,
                                         uint32_t (&probs)[4][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x % 128 / 32) * 16;
  const int row = (first_row + lane % 16) % kHeads;
  const uint32_t from = SharedAddress(result.probs) + row * 128;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    LoadMatrices(probs[i], from + ((2 * i + lane / 16) ^ (row % 8)) * 16);
  }
  const uint32_t factor[2] = {factors[(first_row + lane / 4) % kHeads],
                              factors[(first_row + lane / 4 + 8) % kHeads]};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    uint32_t& word = probs[i / 4][i % 4];
    word = present ? MultiplyBf16x2(word, factor[i % 2]) : 0;
  }
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"

// The softmax of sparse attention on scores as wgmma leaves them (device/wgmma.cuh): 64 heads x 64
// keys by a warpgroup, this thread rows r and r + 8.
//
// Probabilities are 2^(score - reference): scores are rounded to multiples of 2^-13 (an error of at
// most 2^-14, a 50th of what rounding the probability to bf16 costs; coarser beyond 512) and the
// reference is a whole number. So their difference is exact, and another reference multiplies
// probabilities and sums by a power of two, which is exact as well: a result depends on the order
// in which keys are added up, not on when which reference was in use. Kernels that find the
// references in different ways give the same bits.
namespace lodestone::cuda {

// ex2.approx (PTX manual 9.7.3.20).
__device__ inline float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 2^x of a whole x <= 0; 0 below 2^-126.
__device__ inline float PowerOfTwo(float x) {
  return x < -126.0f ? 0.0f : __int_as_float((static_cast<int>(x) + 127) << 23);
}

// Added to a score, it leaves multiples of 2^-13.
inline constexpr float kScoreRounder = 1536;

struct RowStats {
  float reference[2];  // whole numbers, at least every score so far in units of log2; rows r, r + 8
  float sum[2];        // of the probabilities so far
};

// Products become rounded scores in units of log2, plus kScoreRounder; those of keys from
// `valid_keys` on, which are missing, -inf. `scale` turns products into units of log2.
__device__ inline void RoundScores(float (&scores)[32], int valid_keys, float scale) {
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] = fmaf(scores[i], scale, kScoreRounder);
  if (valid_keys < 64) [[unlikely]] {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 4 * 8 + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
      if (key >= valid_keys) scores[i] = -INFINITY;
    }
  }
}

// The largest of this thread's scores of a row.
__device__ inline float LargestScore(const float (&scores)[32], int row) {
  float parts[4];  // short chains
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    parts[i] = fmaxf(fmaxf(scores[8 * i + 2 * row], scores[8 * i + 2 * row + 1]),
                     fmaxf(scores[8 * i + 4 + 2 * row], scores[8 * i + 5 + 2 * row]));
  }
  return fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
}

// Probabilities of rounded scores: store(i, words) gets the A operand of 16 keys as soon as it is
// there. sums[2]: of this thread's.
template <typename Store>
__device__ inline void Exponentials(const float (&scores)[32], const float (&reference)[2],
                                    float (&sums)[2], const Store& store) {
  float parts[2][2] = {};
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32_t words[4];
#pragma unroll
    for (int i = 2 * group; i < 2 * group + 2; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float offset = reference[row] + kScoreRounder;
        const float low = Exp2(scores[4 * i + 2 * row] - offset);
        const float high = Exp2(scores[4 * i + 2 * row + 1] - offset);
        parts[row][i % 2] += low + high;
        words[i % 2 * 2 + row] = PackBf16(low, high);
      }
    }
    store(group, words);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) sums[row] = parts[row][0] + parts[row][1];
}

// A step's sums of all four threads of a row, after those before it times `rescale`.
__device__ inline void AddSums(const float (&step)[2], const float (&rescale)[2], float (&sum)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float of_row = step[row];
    of_row += __shfl_xor_sync(~0u, of_row, 1);
    of_row += __shfl_xor_sync(~0u, of_row, 2);
    sum[row] = fmaf(sum[row], rescale[row], of_row);
  }
}

// Products become probabilities, packed as the A operands of 4 k-steps (RoundScores).
// rescale[2]: what the sums so far must be multiplied by.
__device__ inline void ToProbabilities(float (&scores)[32], int valid_keys, float scale,
                                       RowStats& stats, uint32_t (&probs)[4][4],
                                       float (&rescale)[2]) {
  RoundScores(scores, valid_keys, scale);
  float largest[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) largest[row] = LargestScore(scores, row);
#pragma unroll
  for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
    for (float& x : largest) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  }
  // Both rows' maxima before either's exponentials: latencies overlap.
  asm volatile("" : "+f"(largest[0]), "+f"(largest[1]));
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float reference = fmaxf(stats.reference[row], ceilf(largest[row] - kScoreRounder));
    rescale[row] = PowerOfTwo(stats.reference[row] - reference);
    stats.reference[row] = reference;
  }
  float sums[2];
  Exponentials(scores, stats.reference, sums, [&](int group, const uint32_t(&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) probs[group][i] = words[i];
  });
  AddSums(sums, rescale, stats.sum);
}

// What an attention sink adds to the sum of probabilities; the same instructions in all kernels.
__device__ inline float SinkTerm(float sink, float reference) {
  constexpr float kLog2E = 1.4426950408889634f;
  return exp2f(__fmaf_rn(sink, kLog2E, -reference));
}
__device__ inline float InverseDenominator(float sum, float sink_term) {
  return __fdiv_rn(1.0f, __fadd_rn(sum, sink_term));
}

}  // namespace lodestone::cuda

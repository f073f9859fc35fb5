#pragma once

#include "kernels/cuda/device/attention_math.cuh"

// The softmax of sparse_attention_prefill.cu. As device/attention_math.cuh says, a result does not
// depend on the references in use, so a reference is put above the largest score, by 2^8, and stays
// until a score exceeds it: most steps exchange no maxima among lanes and rescale no sums. No score
// is above the reference, since ex2.approx of x > 0 differs in the last bit from 2^8 ex2.approx(x -
// 8).
namespace lodestone::cuda {

struct PrefillStats {
  float reference[2];  // whole numbers, at least every score so far in units of log2; rows r, r + 8
  float sum[2];        // of the probabilities so far
  float largest[2];    // score this thread has seen, plus kScoreRounder
};
inline constexpr float kReferenceSlack = 8;

// What one step adds: see ToProbabilities.
struct StepSums {
  float rescale[2];
  float sum[2];  // of this thread's probabilities
};

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

__device__ inline float LargestOfQuad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Scores become probabilities; those of keys from `valid_keys` on are 0. store(i, words) gets the A
// operand of 16 keys as soon as it is there.
template <typename Store>
__device__ inline void ToStepProbabilities(float (&scores)[32], int valid_keys, float scale,
                                           PrefillStats& stats, StepSums& step,
                                           const Store& store) {
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] = fmaf(scores[i], scale, kScoreRounder);
  if (valid_keys < 64) [[unlikely]] {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 4 * 8 + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
      if (key >= valid_keys) scores[i] = -INFINITY;
    }
  }
  float largest[2];
  bool exceeds = false;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    largest[row] = LargestScore(scores, row);
    stats.largest[row] = fmaxf(stats.largest[row], largest[row]);
    exceeds |= largest[row] > stats.reference[row] + kScoreRounder;
    step.rescale[row] = 1;
  }
  if (__any_sync(~0u, exceeds)) [[unlikely]] {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float highest = ceilf(LargestOfQuad(largest[row]) - kScoreRounder);
      const float reference =
          highest > stats.reference[row] ? highest + kReferenceSlack : stats.reference[row];
      step.rescale[row] = PowerOfTwo(stats.reference[row] - reference);
      stats.reference[row] = reference;
    }
  }
  float sums[2][2] = {};
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    uint32_t words[4];
#pragma unroll
    for (int i = 2 * group; i < 2 * group + 2; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float offset = stats.reference[row] + kScoreRounder;
        const float low = Exp2(scores[4 * i + 2 * row] - offset);
        const float high = Exp2(scores[4 * i + 2 * row + 1] - offset);
        sums[row][i % 2] += low + high;
        words[i % 2 * 2 + row] = PackBf16(low, high);
      }
    }
    store(group, words);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) step.sum[row] = sums[row][0] + sums[row][1];
}

// Adds the step to the sums of probabilities; apart from ToStepProbabilities, since nothing waits
// for it.
__device__ inline void AddStepSums(const StepSums& step, PrefillStats& stats) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = step.sum[row];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    stats.sum[row] = fmaf(stats.sum[row], step.rescale[row], sum);
  }
}

// What the sums of row `row` must be multiplied by in the end: 1 / denominator, computed with the
// reference that follows from the largest of all scores.
__device__ inline float FinalFactor(const PrefillStats& stats, int row, float largest, float sink) {
  const float reference = ceilf(largest - kScoreRounder);
  const float power = PowerOfTwo(stats.reference[row] - reference);
  return InverseDenominator(stats.sum[row] * power, SinkTerm(sink, reference)) * power;
}

}  // namespace lodestone::cuda

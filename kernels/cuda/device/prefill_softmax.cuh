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
  RoundScores(scores, valid_keys, scale);
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
  Exponentials(scores, stats.reference, step.sum, store);
}

// Adds the step to the sums of probabilities; apart from ToStepProbabilities, since nothing waits
// for it.
__device__ inline void AddStepSums(const StepSums& step, PrefillStats& stats) {
  AddSums(step.sum, step.rescale, stats.sum);
}

// What the sums of row `row` must be multiplied by in the end: 1 / denominator, computed with the
// reference that follows from the largest of all scores.
__device__ inline float FinalFactor(const PrefillStats& stats, int row, float largest, float sink) {
  const float reference = ceilf(largest - kScoreRounder);
  const float power = PowerOfTwo(stats.reference[row] - reference);
  return InverseDenominator(stats.sum[row] * power, SinkTerm(sink, reference)) * power;
}

}  // namespace lodestone::cuda

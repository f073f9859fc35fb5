#pragma once

#include <cstdint>

// Keys whose unsigned order is the order of fp32 scores: NaN lowest, -0 equal to +0.
namespace lodestone::cuda {

constexpr uint32_t kNanKey = 1;              // 0 is free: below the key of every score
constexpr uint32_t kLowestKey = 0x007fffff;  // of -inf

// REQUIRES: `score` is no NaN.
__device__ inline uint32_t NumberKey(float score) {
  const int bits = __float_as_int(score + 0.0f);  // -0 becomes +0
  return static_cast<uint32_t>(bits ^ (bits >> 31 | INT32_MIN));
}
__device__ inline uint32_t KeyOf(float score) {
  return score != score ? kNanKey : NumberKey(score);
}

// The score of the key of a number.
__device__ inline float ScoreOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

}  // namespace lodestone::cuda

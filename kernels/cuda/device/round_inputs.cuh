#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/row_ops.cuh"

// The inputs of a product ahead of it: Q8 (spec 4.2), in bf16, which holds it exactly, and the
// order in which products of many rows take them (gemm.h).
namespace lodestone::cuda {

// Inputs that share a scale: those of a warp, four a lane.
inline constexpr int kRoundedGroup = 128;
__host__ __device__ inline int64_t NumRoundedGroups(int64_t k) {
  return (k + kRoundedGroup - 1) / kRoundedGroup;
}

// QDQ8 of the warp's group: exact products with powers of two around the code. Lanes beyond the
// last input pass zeros. By all lanes.
__device__ inline uint2 RoundGroup(uint2 words) {
  float amax = 0;
  for (const uint32_t word : {words.x, words.y}) {
    amax = fmaxf(amax, fabsf(__uint_as_float(word << 16)));
    amax = fmaxf(amax, fabsf(__uint_as_float(word & 0xffff0000u)));
  }
  const uint32_t scale = Fp8GroupScale(WarpMax(amax));
  const float inverse = E8m0ToFloat(254 - scale);
  const uint32_t factor = E8m0ToBf16x2(scale);
  const auto round = [&](uint32_t word) {
    const float2 pair = {__uint_as_float(word << 16) * inverse,
                         __uint_as_float(word & 0xffff0000u) * inverse};
    const uint32_t codes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    return MultiplyBf16x2(WidenE4m3Pair(codes), factor);
  };
  return {round(words.x), round(words.y)};
}

// The 16 words of each eight lanes transposed: word 4 a + b is what word 4 b + a was, lane l having
// words 2 l and 2 l + 1. By all lanes.
__device__ inline uint2 OrderGroup(uint2 words) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a = lane % 8 / 2;
  const auto word = [&](int b) {
    const int from = lane / 8 * 8 + 2 * b + a / 2;
    const uint32_t even = __shfl_sync(~0u, words.x, from);
    const uint32_t odd = __shfl_sync(~0u, words.y, from);
    return a % 2 == 0 ? even : odd;
  };
  return {word(lane % 2 * 2), word(lane % 2 * 2 + 1)};
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "runtime/weight_format.h"

// Eight neighbouring weights of one output: as they are stored, and widened to bf16.
namespace lodestone::cuda {

template <WeightFormat kFormat>
struct WeightWords;
template <>
struct WeightWords<WeightFormat::kBf16> {
  using Type = uint4;
};
template <>
struct WeightWords<WeightFormat::kFp8> {
  using Type = uint2;
};
template <>
struct WeightWords<WeightFormat::kFp4> {
  using Type = uint32_t;
};
template <WeightFormat kFormat>
using WeightWordsOf = typename WeightWords<kFormat>::Type;

// Bytes of `k` weights of one output.
template <WeightFormat kFormat>
__host__ __device__ constexpr int64_t RowBytes(int64_t k) {
  return k * static_cast<int64_t>(sizeof(WeightWordsOf<kFormat>)) / 8;
}

// Exact unless the product with the scale leaves the range of bf16. `scale` is the E8M0 code.
template <WeightFormat kFormat>
__device__ inline uint4 WidenWords(const WeightWordsOf<kFormat>& words, uint32_t scale) {
  if constexpr (kFormat == WeightFormat::kBf16) {
    return words;
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    const uint32_t factor = E8m0ToBf16x2(scale);
    return {MultiplyBf16x2(WidenE4m3Pair(words.x & 0xffffu), factor),
            MultiplyBf16x2(WidenE4m3Pair(words.x >> 16), factor),
            MultiplyBf16x2(WidenE4m3Pair(words.y & 0xffffu), factor),
            MultiplyBf16x2(WidenE4m3Pair(words.y >> 16), factor)};
  } else {
    const uint32_t factor = E8m0ToBf16x2(scale);
    return {WidenE2m1Pair(words & 0xffu, factor), WidenE2m1Pair(words >> 8 & 0xffu, factor),
            WidenE2m1Pair(words >> 16 & 0xffu, factor), WidenE2m1Pair(words >> 24, factor)};
  }
}

// Rows of a matrix from its row `first` on.
template <WeightFormat kFormat>
struct WeightRows {
  const uint8_t* values;  // of row `first`
  const uint8_t* scales;  // of the whole matrix
  int64_t first;
  int k;

  __device__ const uint8_t* Values(int row, int at) const {
    return values + row * RowBytes<kFormat>(k) + RowBytes<kFormat>(at);
  }
  __device__ WeightWordsOf<kFormat> Load(int row, int at, bool valid) const {
    using Words = WeightWordsOf<kFormat>;
    return valid ? __ldg(reinterpret_cast<const Words*>(Values(row, at))) : Words{};
  }
  // The scales of a row, one for every ScaledInputs(kFormat) inputs.
  __device__ const uint8_t* Scales(int row) const {
    return scales + (first + row) / ScaledOutputs(kFormat) * ScaleColumns(kFormat, k);
  }
  __device__ uint32_t Scale(int row, int at, bool valid) const {
    if constexpr (!IsQuantised(kFormat)) return 0;
    return valid ? __ldg(Scales(row) + at / ScaledInputs(kFormat)) : 0u;
  }
};

}  // namespace lodestone::cuda

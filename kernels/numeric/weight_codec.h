#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/op_params.h"
#include "runtime/weight_format.h"

// Quantised matrices, row by row: one definition for the reference ops, the converter and the
// tests. Layout: runtime/weight_format.h. Model spec 3.3 (docs/model.md).
namespace lodestone {

// Element `j` of a row of kFp8 or kFp4 values, without its scale.
static inline float WeightCode(WeightFormat format, const uint8_t* row, int64_t j) {
  if (format == WeightFormat::kFp8) return E4m3ToFloat(row[j]);
  return E2m1ToFloat(static_cast<uint8_t>(row[j / 2] >> (j % 2 * 4) & 15));
}

// The scale byte of element [row, j] of the whole matrix.
static inline uint8_t WeightScaleCode(const MatrixSource& source, int64_t row, int64_t j) {
  const WeightFormat format = source.spec.format;
  return source.scales.row<uint8_t>(row / ScaledOutputs(format))[j / ScaledInputs(format)];
}

// Row `row` of the matrix as numbers, exact unless code times scale leaves the range of fp32.
static inline void WidenWeightRow(const MatrixSource& source, int64_t row, float* out) {
  const int64_t k = source.spec.k;
  if (source.spec.format == WeightFormat::kF32) {
    std::copy_n(source.values.row<float>(row), k, out);
  } else if (source.spec.format == WeightFormat::kBf16) {
    const uint16_t* values = source.values.row<uint16_t>(row);
    for (int64_t j = 0; j < k; ++j) out[j] = Bf16ToFloat(values[j]);
  } else {
    const uint8_t* codes = source.values.row<uint8_t>(row);
    for (int64_t j = 0; j < k; ++j) {
      out[j] =
          WeightCode(source.spec.format, codes, j) * E8m0ToFloat(WeightScaleCode(source, row, j));
    }
  }
}

// The scale byte for weights whose largest magnitude is `amax` and whose largest code is
// `max_code`: the smallest power of two that brings them into range; 1 for zeros. Unlike the scale
// of activations it has no floor but the smallest normal power of two.
static inline uint8_t WeightGroupScale(float amax, float max_code) {
  if (amax == 0) return 127;
  return Pow2CeilE8m0(std::max(amax / max_code, 0x1p-126f));
}

// Up to 128 rows [num_rows, k] of a kFp8 matrix, the first one at the top of a tile: codes
// [num_rows, k] and one row of scales [ScaleColumns].
static inline void EncodeFp8Rows(const float* rows, int64_t num_rows, int64_t k, uint8_t* codes,
                                 uint8_t* scales) {
  for (int64_t first = 0; first < k; first += kQuantisedGroup) {
    const int64_t width = std::min(kQuantisedGroup, k - first);
    float amax = 0;
    for (int64_t r = 0; r < num_rows; ++r) {
      amax = std::max(amax, MaxMagnitude(rows + r * k + first, width));
    }
    const uint8_t scale_code = WeightGroupScale(amax, kE4m3Max);
    const float scale = E8m0ToFloat(scale_code);
    scales[first / kQuantisedGroup] = scale_code;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t j = first; j < first + width; ++j) {
        codes[r * k + j] = FloatToE4m3(rows[r * k + j] / scale);
      }
    }
  }
}

// One row [k] of a kFp4 matrix: packed codes [k / 2] and scales [ScaleColumns]. REQUIRES: k is a
// multiple of 32.
static inline void EncodeFp4Row(const float* row, int64_t k, uint8_t* packed, uint8_t* scales) {
  constexpr int64_t kGroup = ScaledInputs(WeightFormat::kFp4);
  for (int64_t first = 0; first < k; first += kGroup) {
    const uint8_t scale_code = WeightGroupScale(MaxMagnitude(row + first, kGroup), kE2m1Max);
    const float scale = E8m0ToFloat(scale_code);
    scales[first / kGroup] = scale_code;
    for (int64_t j = first; j < first + kGroup; j += 2) {
      packed[j / 2] =
          static_cast<uint8_t>(FloatToE2m1(row[j] / scale) | FloatToE2m1(row[j + 1] / scale) << 4);
    }
  }
}

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/cache_format.h"
#include "runtime/tensor.h"

// How the matrices of products are stored: the one enum, and the one place that knows the layout of
// scales. Checkpoints hold exactly these tensors; backends repack them (Ops::PackWeight).
namespace lodestone {

enum class WeightFormat : uint8_t {
  kBf16,
  kF32,
  kFp8,  // e4m3 [n, k]; one E8M0 scale per tile of 128 outputs and 128 inputs
  kFp4,  // two e2m1 codes a byte, low nibble first, [n, k / 2]; a scale per output and 32 inputs
};

constexpr bool IsQuantised(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp4;
}

// Inputs of a product that are quantised together: Q8 of an activation row takes groups of this
// many (docs/model.md 4.4). Also the edge of a kFp8 tile.
inline constexpr int64_t kQuantisedGroup = 128;

// Outputs and inputs that share one scale. REQUIRES: IsQuantised(format).
constexpr int64_t ScaledOutputs(WeightFormat format) {
  return format == WeightFormat::kFp8 ? kQuantisedGroup : 1;
}
constexpr int64_t ScaledInputs(WeightFormat format) {
  return format == WeightFormat::kFp8 ? kQuantisedGroup : 32;
}

// The value tensor of a matrix [n, k] is [n, ValueColumns]; its scales are an F8_E8M0 tensor
// [ScaleRows, ScaleColumns]. REQUIRES: k is even for kFp4.
constexpr DType ValueType(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16: return DType::kBf16;
    case WeightFormat::kF32: return DType::kF32;
    case WeightFormat::kFp8: return DType::kF8E4M3;
    case WeightFormat::kFp4: return DType::kI8;  // the container; never converted
  }
  return DType::kF32;
}
constexpr int64_t ValueColumns(WeightFormat format, int64_t k) {
  return format == WeightFormat::kFp4 ? k / 2 : k;
}
constexpr int64_t ScaleRows(WeightFormat format, int64_t n) {
  return (n + ScaledOutputs(format) - 1) / ScaledOutputs(format);
}
constexpr int64_t ScaleColumns(WeightFormat format, int64_t k) {
  return (k + ScaledInputs(format) - 1) / ScaledInputs(format);
}

// Bytes of values and scales together, as a checkpoint holds them.
constexpr int64_t StoredWeightBytes(WeightFormat format, int64_t n, int64_t k) {
  const int64_t values = n * ValueColumns(format, k) * BytesPerElement(ValueType(format));
  return IsQuantised(format) ? values + ScaleRows(format, n) * ScaleColumns(format, k) : values;
}

// Whether x passes through Q8 before a product with kFp8 or kFp4 weights: the vendor's own step.
// Other numerics use the same weights, exactly widened, with x as it is.
constexpr bool RoundsProductInputs(Numerics numerics) { return numerics == Numerics::kReference; }

constexpr std::string_view Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16: return "bf16";
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kFp8: return "fp8";
    case WeightFormat::kFp4: return "fp4";
  }
  return "";
}

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/numeric/rope.h"
#include "kernels/op_params.h"
#include "runtime/tensor.h"

// Rows of tensors and caches as floats.
namespace lodestone::reference {

// "round" of kernels/op_params.h: to bf16, or not at all under kF32.
float Round(DType act, float x);
void RoundAll(DType act, float* x, int64_t n);

// `n` elements from `offset` (in elements) of a kF32 or kBf16 tensor, widened; and back, rounded.
void ReadRow(const TensorView& view, int64_t offset, int64_t n, float* out);
void WriteRow(const TensorView& view, int64_t offset, int64_t n, const float* values);
std::vector<float> ReadRow(const TensorView& view, int64_t offset, int64_t n);
// A whole vector, or matrix with dense rows.
std::vector<float> ReadAll(const TensorView& view);

// Row `row` of block `block`; the scale is null where the format has none.
struct StoredRow {
  std::byte* payload;
  std::byte* scale;
};
StoredRow RowAt(const RowStore& store, int64_t block, int64_t row);
// Entry `entry` of sequence `seq`, found through its block table.
StoredRow EntryAt(const RowStore& store, const BatchIndex& batch, int64_t seq, int64_t entry,
                  int64_t ratio);

// The angles of one position, one per frequency.
std::vector<CosSin> Angles(int32_t position, const TensorView& freqs);

// sum of x[i]^2 in f64, divided by n.
double MeanSquare(const float* x, int64_t n);
// x = round(weight * x * rsqrt(mean(x^2) + eps)), in place. Spec 7.1.
void RmsNormRow(float* x, const float* weight, int64_t n, float eps, DType act);
// Rotates the last dims of x[0, n) and rounds them. Spec 7.3.
void RotateTail(float* x, int64_t n, const std::vector<CosSin>& angles, bool inverse, DType act);

}  // namespace lodestone::reference

#include "kernels/reference/gemm.h"

#include <algorithm>

#include "kernels/numeric/fp8.h"
#include "kernels/numeric/weight_codec.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

// Dot products of x with four rows of a matrix; each sum runs over ascending i. Four at once
// because one sum waits for the latency of its own additions.
void FourDots(const double* x, const double* rows, int64_t k, float* out) {
  double sums[4] = {};
  for (int64_t i = 0; i < k; ++i) {
    for (int r = 0; r < 4; ++r) sums[r] += x[i] * rows[r * k + i];
  }
  for (int r = 0; r < 4; ++r) out[r] = static_cast<float>(sums[r]);
}

float Dot(const double* x, const double* row, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += x[i] * row[i];
  return static_cast<float>(sum);
}

// The tensors inside a packed weight (ReferenceOps::PackWeight). REQUIRES: quantised.
MatrixSource SourceOf(const PackedWeight& weight) {
  const int64_t rows = weight.groups * weight.n;
  const WeightFormat format = weight.format;
  const TensorView values(weight.data.data, ValueType(format),
                          {rows, ValueColumns(format, weight.k)});
  const TensorView scales(weight.data.as<std::byte>() + values.num_bytes(), DType::kF8E8M0,
                          {ScaleRows(format, rows), ScaleColumns(format, weight.k)});
  return {weight, values, scales};
}

}  // namespace

WideWeight::WideWeight(const PackedWeight& weight, bool round_fp8)
    : spec_(weight),
      round_fp8_(round_fp8 && weight.rounds_inputs && IsQuantised(weight.format)),
      slice_(IsQuantised(weight.format) ? ScaledInputs(weight.format) : weight.k),
      num_slices_((weight.k + slice_ - 1) / slice_) {
  if (IsQuantised(weight.format)) {
    Widen(weight);
  } else {
    const TensorView rows(weight.data.data, ValueType(weight.format),
                          {weight.groups * weight.n, weight.k});
    const std::vector<float> narrow = ReadAll(rows);
    values_.assign(narrow.begin(), narrow.end());
  }
}

void WideWeight::Widen(const PackedWeight& weight) {
  const MatrixSource source = SourceOf(weight);
  const int64_t rows = spec_.groups * spec_.n;
  values_.resize(static_cast<size_t>(rows * spec_.k));
  scales_.resize(static_cast<size_t>(rows * num_slices_));
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* codes = source.values.row<uint8_t>(row);
    for (int64_t j = 0; j < spec_.k; ++j) {
      values_[row * spec_.k + j] = WeightCode(spec_.format, codes, j);
    }
    for (int64_t s = 0; s < num_slices_; ++s) {
      scales_[row * num_slices_ + s] = E8m0ToFloat(WeightScaleCode(source, row, s * slice_));
    }
  }
}

// x, through Q8 where the product asks for it.
std::vector<double> WideWeight::Inputs(const float* x) const {
  std::vector<float> inputs(x, x + spec_.groups * spec_.k);
  for (int64_t g = 0; round_fp8_ && g < spec_.groups; ++g) {
    for (int64_t i = 0; i < spec_.k; i += kQuantisedGroup) {
      RoundFp8Group(inputs.data() + g * spec_.k + i, std::min(kQuantisedGroup, spec_.k - i));
    }
  }
  return {inputs.begin(), inputs.end()};
}

float WideWeight::SlicedDot(const double* x, int64_t row) const {
  float sum = 0;
  for (int64_t s = 0; s < num_slices_; ++s) {
    const int64_t first = s * slice_;
    const int64_t count = std::min(slice_, spec_.k - first);
    const float slice = Dot(x + first, values_.data() + row * spec_.k + first, count);
    sum += slice * scales_[row * num_slices_ + s];
  }
  return sum;
}

void WideWeight::Multiply(const float* x, float* out) const {
  const std::vector<double> wide = Inputs(x);
  const int64_t n = spec_.n, k = spec_.k;
  for (int64_t g = 0; g < spec_.groups; ++g) {
    const double* inputs = wide.data() + g * k;
    int64_t i = 0;
    if (IsQuantised(spec_.format)) {
      for (; i < n; ++i) out[g * n + i] = SlicedDot(inputs, g * n + i);
      continue;
    }
    const double* rows = values_.data() + g * n * k;
    for (; i + 4 <= n; i += 4) FourDots(inputs, rows + i * k, k, out + g * n + i);
    for (; i < n; ++i) out[g * n + i] = Dot(inputs, rows + i * k, k);
  }
}

void Linear(const LinearParams& p) {
  const WideWeight weight(p.weight, p.round_fp8);
  std::vector<float> x(p.x.shape[1]);
  std::vector<float> out(p.out.shape[1]);
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    ReadRow(p.x, t * p.x.strides[0], p.x.shape[1], x.data());
    weight.Multiply(x.data(), out.data());
    WriteRow(p.out, t * p.out.strides[0], p.out.shape[1], out.data());
  }
}

}  // namespace lodestone::reference

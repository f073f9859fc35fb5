#include "kernels/reference/gemm.h"

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

}  // namespace

WideWeight::WideWeight(const PackedWeight& weight)
    : n_(weight.n), k_(weight.k), groups_(weight.groups) {
  const std::vector<float> narrow = ReadAll(weight.data);
  values_.assign(narrow.begin(), narrow.end());
}

void WideWeight::Multiply(const float* x, float* out) const {
  const std::vector<double> wide(x, x + groups_ * k_);
  for (int64_t g = 0; g < groups_; ++g) {
    const double* inputs = wide.data() + g * k_;
    const double* rows = values_.data() + g * n_ * k_;
    int64_t i = 0;
    for (; i + 4 <= n_; i += 4) FourDots(inputs, rows + i * k_, k_, out + g * n_ + i);
    for (; i < n_; ++i) out[g * n_ + i] = Dot(inputs, rows + i * k_, k_);
  }
}

void Linear(const LinearParams& p) {
  const WideWeight weight(p.weight);
  std::vector<float> x(p.x.shape[1]);
  std::vector<float> out(p.out.shape[1]);
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    ReadRow(p.x, t * p.x.strides[0], p.x.shape[1], x.data());
    weight.Multiply(x.data(), out.data());
    WriteRow(p.out, t * p.out.strides[0], p.out.shape[1], out.data());
  }
}

}  // namespace lodestone::reference

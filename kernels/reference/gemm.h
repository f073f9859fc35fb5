#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op_params.h"

namespace lodestone::reference {

// A weight widened once, for many rows. Row-major [groups * n, k].
class WideWeight {
 public:
  // With `round_fp8` a quantised weight takes its inputs through Q8 (LinearParams).
  explicit WideWeight(const PackedWeight& weight, bool round_fp8 = false);
  // out[g * n + i] = fp32(f64 sum over j of x[g * k + j] * weight[g * n + i, j]). Quantised: such a
  // sum over the codes of each slice, times its scale; slices are added in ascending order in fp32.
  void Multiply(const float* x, float* out) const;

 private:
  void Widen(const PackedWeight& weight);
  std::vector<double> Inputs(const float* x) const;
  float SlicedDot(const double* x, int64_t row) const;

  const MatrixSpec spec_;
  const bool round_fp8_;
  const int64_t slice_;         // inputs of one sum
  const int64_t num_slices_;    // of a row
  std::vector<double> values_;  // codes without scales if quantised
  std::vector<float> scales_;   // [groups * n, num_slices]; quantised only
};

}  // namespace lodestone::reference

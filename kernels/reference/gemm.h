#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op_params.h"

namespace lodestone::reference {

// A weight widened once, for many rows. Row-major [groups * n, k].
class WideWeight {
 public:
  explicit WideWeight(const PackedWeight& weight);
  // out[g * n + i] = fp32(f64 sum over j of x[g * k + j] * weight[g * n + i, j]).
  void Multiply(const float* x, float* out) const;

 private:
  const int64_t n_;
  const int64_t k_;
  const int64_t groups_;
  std::vector<double> values_;
};

}  // namespace lodestone::reference

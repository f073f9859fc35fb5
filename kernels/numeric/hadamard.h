#pragma once

#include <cmath>
#include <cstdint>

namespace lodestone {

// Sylvester (natural order) Walsh-Hadamard transform times n^-1/2, in place; its own inverse.
// The order of the fp32 operations is fixed, so that backends agree to the bit: stages h = 1, 2, 4,
// .. n/2; within a stage (a, b) = (x[i], x[i + h]) becomes (a + b, a - b); at the end one product
// with the fp32 value of n^-1/2. REQUIRES: n is a power of two. Spec 8.4.
static inline void Hadamard(float* x, int64_t n) {
  for (int64_t h = 1; h < n; h *= 2) {
    for (int64_t first = 0; first < n; first += 2 * h) {
      for (int64_t i = first; i < first + h; ++i) {
        const float a = x[i];
        const float b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace lodestone

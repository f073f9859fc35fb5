#pragma once

#include <cmath>
#include <cstdint>

namespace lodestone {

struct CosSin {
  float cos;
  float sin;
};

// The angle is the fp32 product, whose rounding shows at large positions; every backend calls this
// function, so that all use the same cosf and sinf. Spec 7.2.
static inline CosSin RopeAngle(int32_t position, float freq) {
  const float angle = static_cast<float>(position) * freq;
  return {std::cos(angle), std::sin(angle)};
}

// Multiplies the interleaved pairs (x[2i], x[2i + 1]), i < num_pairs, by exp(+j angle), or by
// exp(-j angle) if `inverse`. `x` is the first rotary dim. Spec 7.3.
static inline void RotatePairs(float* x, const CosSin* angles, int64_t num_pairs, bool inverse) {
  for (int64_t i = 0; i < num_pairs; ++i) {
    const float c = angles[i].cos;
    const float s = inverse ? -angles[i].sin : angles[i].sin;
    const float re = x[2 * i];
    const float im = x[2 * i + 1];
    x[2 * i] = re * c - im * s;
    x[2 * i + 1] = re * s + im * c;
  }
}

}  // namespace lodestone

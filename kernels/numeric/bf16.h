#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Scalar number formats, one definition for every backend and test. All functions of this folder
// are `static`: the SIMD files are compiled once per instruction set, and a shared inline function
// could be linked from a set that the processor lacks.
namespace lodestone {

static inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Nearest, ties to even; overflow to infinity; NaN stays NaN (quiet) with its sign.
static inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

// The largest magnitude of x[0, n); NaN elements are skipped.
static inline float MaxMagnitude(const float* x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

}  // namespace lodestone

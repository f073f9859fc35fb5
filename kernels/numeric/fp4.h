#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp8.h"

// FP4 e2m1: codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6; code 8 + c is the negative of code c. Groups
// share a power-of-two scale. Model spec 4.3 (docs/model.md).
namespace lodestone {

inline constexpr float kE2m1Max = 6.0f;

static inline float E2m1ToFloat(uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitudes[code & 7u];
  return (code & 8u) != 0u ? -magnitude : magnitude;
}

// Clamp to [-6, 6], then nearest, ties to the even code. The sign of what rounds to zero is kept;
// NaN becomes 6.
static inline uint8_t FloatToE2m1(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 31 << 3;
  const float a = std::fabs(x);
  uint32_t code = 7;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  return static_cast<uint8_t>(sign | code);
}

// The scale byte of a group whose largest magnitude is `amax`; the floor is 6 * 2^-126.
static inline uint8_t Fp4GroupScale(float amax) {
  constexpr float kFloor = 6.0f * 0x1p-126f;
  constexpr float kReciprocal = 1.0f / kE2m1Max;
  return Pow2CeilE8m0((amax > kFloor ? amax : kFloor) * kReciprocal);
}

// One group: codes[i] = e2m1(x[i] / scale), one code a byte. Returns the scale byte.
static inline uint8_t QuantizeFp4Group(const float* x, int64_t n, uint8_t* codes) {
  const uint8_t scale_code = Fp4GroupScale(MaxMagnitude(x, n));
  const float scale = E8m0ToFloat(scale_code);
  for (int64_t i = 0; i < n; ++i) codes[i] = FloatToE2m1(x[i] / scale);
  return scale_code;
}

// QDQ4 of one group, in place. The results are exact in bf16.
static inline void RoundFp4Group(float* x, int64_t n) {
  const float scale = E8m0ToFloat(Fp4GroupScale(MaxMagnitude(x, n)));
  for (int64_t i = 0; i < n; ++i) x[i] = E2m1ToFloat(FloatToE2m1(x[i] / scale)) * scale;
}

}  // namespace lodestone

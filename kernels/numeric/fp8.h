#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/numeric/bf16.h"

// FP8 e4m3 (no infinity, 0x7f is NaN, largest 448) and power-of-two scales E8M0 (byte b is
// 2^(b-127), 255 is NaN). Model spec 3.3, 4.1 to 4.3 (docs/model.md).
namespace lodestone {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kFp8AmaxFloor = 1e-4f;  // of a group's largest magnitude

static inline float E4m3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8u) {  // subnormal: a multiple of 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Clamp to [-448, 448], then nearest, ties to even. The sign of what rounds to zero is kept.
static inline uint8_t FloatToE4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  uint32_t magnitude = bits & 0x7fffffffu;
  const float a = std::bit_cast<float>(magnitude);
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7eu);
  if (a < 0x1p-6f) {  // the sum's unit in the last place is 2^-9, so the addition rounds
    const uint32_t rounded =
        std::bit_cast<uint32_t>(a + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
    return static_cast<uint8_t>(sign | rounded);
  }
  magnitude += 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120u << 3)));
}

static inline float E8m0ToFloat(uint8_t code) {
  if (code == 255u) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0u) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// The E8M0 byte of the smallest power of two >= a. REQUIRES: a is a positive normal number.
static inline uint8_t Pow2CeilE8m0(float a) {
  const uint32_t bits = std::bit_cast<uint32_t>(a);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffu) != 0u ? 1u : 0u));
}

// The scale byte of a group whose largest magnitude is `amax`.
static inline uint8_t Fp8GroupScale(float amax) {
  constexpr float kReciprocal = 1.0f / kE4m3Max;
  return Pow2CeilE8m0((amax > kFp8AmaxFloor ? amax : kFp8AmaxFloor) * kReciprocal);
}

// Q8 of one group: codes[i] = e4m3(x[i] / scale). Returns the scale byte.
static inline uint8_t QuantizeFp8Group(const float* x, int64_t n, uint8_t* codes) {
  const uint8_t scale_code = Fp8GroupScale(MaxMagnitude(x, n));
  const float scale = E8m0ToFloat(scale_code);
  for (int64_t i = 0; i < n; ++i) codes[i] = FloatToE4m3(x[i] / scale);
  return scale_code;
}

// QDQ8 of one group, in place. The results are exact in bf16.
static inline void RoundFp8Group(float* x, int64_t n) {
  const float scale = E8m0ToFloat(Fp8GroupScale(MaxMagnitude(x, n)));
  for (int64_t i = 0; i < n; ++i) x[i] = E4m3ToFloat(FloatToE4m3(x[i] / scale)) * scale;
}

// One fp32 scale, not a power of two, for a whole row: max(1e-4, amax) / 448, so that a row of
// zeros works. Index keys and queries under kFp8.
static inline float Fp8RowScale(float amax) {
  return (amax > kFp8AmaxFloor ? amax : kFp8AmaxFloor) / kE4m3Max;
}

static inline float QuantizeFp8Row(const float* x, int64_t n, uint8_t* codes) {
  const float scale = Fp8RowScale(MaxMagnitude(x, n));
  for (int64_t i = 0; i < n; ++i) codes[i] = FloatToE4m3(x[i] / scale);
  return scale;
}

}  // namespace lodestone

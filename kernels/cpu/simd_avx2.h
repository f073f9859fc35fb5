#pragma once

#include <cstdint>

#include "kernels/cpu/simd_base.h"

// Sixteen fp32 lanes in two AVX2 registers. Same functions, with the same results, as the other
// file.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};

LODESTONE_SIMD F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LODESTONE_SIMD void Store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
LODESTONE_SIMD F32x16 Broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
LODESTONE_SIMD I32x16 BroadcastInt(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
LODESTONE_SIMD I32x16 LaneIndex() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

LODESTONE_SIMD F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
LODESTONE_SIMD F32x16 NegFma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
// If either is NaN, the second operand: put the value that must survive second.
LODESTONE_SIMD F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
LODESTONE_SIMD F32x16 RoundToInteger(F32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

LODESTONE_SIMD I32x16 ToInt(F32x16 a) {
  return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
LODESTONE_SIMD I32x16 Bits(F32x16 a) {
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
LODESTONE_SIMD F32x16 FromBits(I32x16 a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
LODESTONE_SIMD I32x16 AddInt(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
LODESTONE_SIMD I32x16 SubInt(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
LODESTONE_SIMD I32x16 And(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
LODESTONE_SIMD I32x16 Or(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
LODESTONE_SIMD I32x16 Xor(I32x16 a, I32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int kBits>
LODESTONE_SIMD I32x16 ShiftLeft(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
LODESTONE_SIMD I32x16 ShiftRight(I32x16 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
LODESTONE_SIMD I32x16 ShiftRightSigned(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
LODESTONE_SIMD __m256i SelectNanHalf(__m256 a, __m256i if_nan, __m256i otherwise) {
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(otherwise),
                                              _mm256_castsi256_ps(if_nan),
                                              _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
// Lanes where `a` is NaN take `if_nan`, others `otherwise`.
LODESTONE_SIMD I32x16 SelectNan(F32x16 a, I32x16 if_nan, I32x16 otherwise) {
  return {SelectNanHalf(a.lo, if_nan.lo, otherwise.lo),
          SelectNanHalf(a.hi, if_nan.hi, otherwise.hi)};
}
// Bit i: a[i] > b[i].
LODESTONE_SIMD uint32_t GreaterMask(I32x16 a, I32x16 b) {
  const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.lo, b.lo));
  const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.hi, b.hi));
  return static_cast<uint32_t>(_mm256_movemask_ps(lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(hi)) << 8;
}
LODESTONE_SIMD void StoreInt(int32_t* p, I32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}

LODESTONE_SIMD __m256 WidenBf16Half(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
LODESTONE_SIMD F32x16 LoadBf16(const uint16_t* p) {
  return {WidenBf16Half(p), WidenBf16Half(p + 8)};
}
// Sixteen e4m3 codes times 2^-8. With their bits placed as those of fp16 (whose exponent has a bit
// more, and another bias) the processor's own conversion is exact, subnormals included. NaN codes
// give numbers.
LODESTONE_SIMD F32x16 LoadE4m3(const uint8_t* p) {
  const __m256i codes =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
// Sixteen e2m1 codes times 2: the low nibbles of 16 bytes (half 0) or the high ones (half 1).
LODESTONE_SIMD __m128i TwiceE2m1(const uint8_t* p, int64_t half) {
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i codes = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(half * 4)));
  return _mm_shuffle_epi8(table, _mm_and_si128(codes, _mm_set1_epi8(15)));
}
LODESTONE_SIMD F32x16 LoadE2m1(const uint8_t* p, int64_t half) {
  const __m128i values = TwiceE2m1(p, half);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)))};
}
// Sixteen E8M0 bytes as powers of two, byte 0 (a subnormal) included. REQUIRES: none is 255.
LODESTONE_SIMD __m256 WidenE8m0Half(const uint8_t* p) {
  const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits =
      _mm256_max_epi32(_mm256_slli_epi32(codes, 23), _mm256_set1_epi32(0x00400000));
  return _mm256_castsi256_ps(bits);
}
LODESTONE_SIMD F32x16 LoadE8m0(const uint8_t* p) {
  return {WidenE8m0Half(p), WidenE8m0Half(p + 8)};
}
LODESTONE_SIMD void StoreHighHalves(uint16_t* p, I32x16 a) {
  const __m256i packed =
      _mm256_packus_epi32(_mm256_srli_epi32(a.lo, 16), _mm256_srli_epi32(a.hi, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}

// Lane i holds lane i ^ kDistance; kDistance is 1, 2, 4 or 8.
template <int kDistance>
LODESTONE_SIMD F32x16 SwapLanes(F32x16 a) {
  if constexpr (kDistance == 1) {
    return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
  }
  if constexpr (kDistance == 2) {
    return {_mm256_permute_ps(a.lo, 0x4E), _mm256_permute_ps(a.hi, 0x4E)};
  }
  if constexpr (kDistance == 4) {
    return {_mm256_permute2f128_ps(a.lo, a.lo, 0x01), _mm256_permute2f128_ps(a.hi, a.hi, 0x01)};
  }
  if constexpr (kDistance == 8) return {a.hi, a.lo};
}

LODESTONE_SIMD __m256 FoldQuarters(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
LODESTONE_SIMD F32x16 FoldHalves(F32x16 a, F32x16 b, F32x16 c, F32x16 d) {
  return {FoldQuarters(_mm256_add_ps(a.lo, a.hi), _mm256_add_ps(b.lo, b.hi)),
          FoldQuarters(_mm256_add_ps(c.lo, c.hi), _mm256_add_ps(d.lo, d.hi))};
}
LODESTONE_SIMD F32x16 FoldPairs44(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(_mm256_shuffle_ps(a.lo, b.lo, 0x44), _mm256_shuffle_ps(a.lo, b.lo, 0xEE)),
          _mm256_add_ps(_mm256_shuffle_ps(a.hi, b.hi, 0x44), _mm256_shuffle_ps(a.hi, b.hi, 0xEE))};
}
LODESTONE_SIMD F32x16 FoldPairs88(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(_mm256_shuffle_ps(a.lo, b.lo, 0x88), _mm256_shuffle_ps(a.lo, b.lo, 0xDD)),
          _mm256_add_ps(_mm256_shuffle_ps(a.hi, b.hi, 0x88), _mm256_shuffle_ps(a.hi, b.hi, 0xDD))};
}
LODESTONE_SIMD __m256 LowHalf(F32x16 a) { return a.lo; }
LODESTONE_SIMD __m256 HighHalf(F32x16 a) { return a.hi; }

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

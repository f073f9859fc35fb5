#pragma once

#include <cstdint>

#include "kernels/cpu/simd_base.h"

// Sixteen fp32 lanes in one AVX-512 register. Same functions, with the same results, as the other
// file.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};

LODESTONE_SIMD F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
LODESTONE_SIMD void Store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
LODESTONE_SIMD F32x16 Broadcast(float x) { return {_mm512_set1_ps(x)}; }
LODESTONE_SIMD I32x16 BroadcastInt(int32_t x) { return {_mm512_set1_epi32(x)}; }
LODESTONE_SIMD I32x16 LaneIndex() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

LODESTONE_SIMD F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
LODESTONE_SIMD F32x16 NegFma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
// If either is NaN, the second operand: put the value that must survive second.
LODESTONE_SIMD F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
LODESTONE_SIMD F32x16 RoundToInteger(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

LODESTONE_SIMD I32x16 ToInt(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
LODESTONE_SIMD I32x16 Bits(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
LODESTONE_SIMD F32x16 FromBits(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
LODESTONE_SIMD I32x16 AddInt(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
LODESTONE_SIMD I32x16 SubInt(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
LODESTONE_SIMD I32x16 And(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
LODESTONE_SIMD I32x16 Or(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
LODESTONE_SIMD I32x16 Xor(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
LODESTONE_SIMD I32x16 ShiftLeft(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
LODESTONE_SIMD I32x16 ShiftRight(I32x16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
LODESTONE_SIMD I32x16 ShiftRightSigned(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
// Lanes where `a` is NaN take `if_nan`, others `otherwise`.
LODESTONE_SIMD I32x16 SelectNan(F32x16 a, I32x16 if_nan, I32x16 otherwise) {
  return {_mm512_mask_mov_epi32(otherwise.v, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), if_nan.v)};
}
// Bit i: a[i] > b[i].
LODESTONE_SIMD uint32_t GreaterMask(I32x16 a, I32x16 b) {
  return _mm512_cmpgt_epi32_mask(a.v, b.v);
}
LODESTONE_SIMD void StoreInt(int32_t* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }

LODESTONE_SIMD F32x16 LoadBf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
// Sixteen e4m3 codes times 2^-8. With their bits placed as those of fp16 (whose exponent has a bit
// more, and another bias) the processor's own conversion is exact, subnormals included. NaN codes
// give numbers.
LODESTONE_SIMD F32x16 LoadE4m3(const uint8_t* p) {
  const __m256i codes =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return {_mm512_cvtph_ps(halves)};
}
// Sixteen e2m1 codes times 2: the low nibbles of 16 bytes (half 0) or the high ones (half 1).
LODESTONE_SIMD F32x16 LoadE2m1(const uint8_t* p, int64_t half) {
  const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i codes = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(static_cast<int>(half * 4)));
  const __m128i values = _mm_shuffle_epi8(table, _mm_and_si128(codes, _mm_set1_epi8(15)));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(values))};
}
// Sixteen E8M0 bytes as powers of two, byte 0 (a subnormal) included. REQUIRES: none is 255.
LODESTONE_SIMD F32x16 LoadE8m0(const uint8_t* p) {
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_slli_epi32(codes, 23), _mm512_set1_epi32(0x00400000)))};
}
LODESTONE_SIMD void StoreHighHalves(uint16_t* p, I32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16)));
}

// Lane i holds lane i ^ kDistance; kDistance is 1, 2, 4 or 8.
template <int kDistance>
LODESTONE_SIMD F32x16 SwapLanes(F32x16 a) {
  if constexpr (kDistance == 1) return {_mm512_permute_ps(a.v, 0xB1)};
  if constexpr (kDistance == 2) return {_mm512_permute_ps(a.v, 0x4E)};
  if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xB1)};
  if constexpr (kDistance == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4E)};
}

LODESTONE_SIMD F32x16 FoldHalves(F32x16 a, F32x16 b, F32x16 c, F32x16 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
  return {_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD))};
}
LODESTONE_SIMD F32x16 FoldPairs44(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(_mm512_shuffle_ps(a.v, b.v, 0x44), _mm512_shuffle_ps(a.v, b.v, 0xEE))};
}
LODESTONE_SIMD F32x16 FoldPairs88(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(_mm512_shuffle_ps(a.v, b.v, 0x88), _mm512_shuffle_ps(a.v, b.v, 0xDD))};
}
LODESTONE_SIMD __m256 LowHalf(F32x16 a) { return _mm512_castps512_ps256(a.v); }
LODESTONE_SIMD __m256 HighHalf(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

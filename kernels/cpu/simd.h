#pragma once

// GCC 12 takes the "undefined" operand of its own AVX-512 intrinsics for an uninitialised variable
// (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

// Sixteen fp32 lanes: one AVX-512 register, or two AVX2 registers. Every function does the same
// arithmetic in the same order on both, so results are the same to the bit.
//
// Only for *_simd.cc, which are compiled once per instruction set with LODESTONE_SIMD_NAMESPACE set.
// Everything here is inlined by force: a function that the linker shared between the two compilations
// could be the AVX-512 one on a processor that has only AVX2.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {

#define LODESTONE_SIMD static inline __attribute__((always_inline))

inline constexpr int kLanes = 16;

#if defined(__AVX512F__)

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
LODESTONE_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
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
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44),
                                  _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44),
                                  _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
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

#else

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};

LODESTONE_SIMD F32x16 Load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
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
  return {
      _mm256_add_ps(_mm256_shuffle_ps(a.lo, b.lo, 0x44), _mm256_shuffle_ps(a.lo, b.lo, 0xEE)),
      _mm256_add_ps(_mm256_shuffle_ps(a.hi, b.hi, 0x44), _mm256_shuffle_ps(a.hi, b.hi, 0xEE))};
}
LODESTONE_SIMD F32x16 FoldPairs88(F32x16 a, F32x16 b) {
  return {
      _mm256_add_ps(_mm256_shuffle_ps(a.lo, b.lo, 0x88), _mm256_shuffle_ps(a.lo, b.lo, 0xDD)),
      _mm256_add_ps(_mm256_shuffle_ps(a.hi, b.hi, 0x88), _mm256_shuffle_ps(a.hi, b.hi, 0xDD))};
}
LODESTONE_SIMD __m256 LowHalf(F32x16 a) { return a.lo; }
LODESTONE_SIMD __m256 HighHalf(F32x16 a) { return a.hi; }

#endif

LODESTONE_SIMD F32x16 Zero() { return Broadcast(0.0f); }

// The first `count` < 16 lanes from memory, zero in the others.
LODESTONE_SIMD F32x16 LoadPart(const float* p, int64_t count) {
  alignas(64) float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return Load(lanes);
}
LODESTONE_SIMD F32x16 LoadBf16Part(const uint16_t* p, int64_t count) {
  alignas(64) uint16_t lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return LoadBf16(lanes);
}
LODESTONE_SIMD void StorePart(float* p, F32x16 a, int64_t count) {
  alignas(64) float lanes[kLanes];
  Store(lanes, a);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// Nearest bf16, ties to even, as fp32 bits; NaN stays NaN (quiet) with its sign.
LODESTONE_SIMD I32x16 RoundBf16Bits(F32x16 a) {
  const I32x16 bits = Bits(a);
  const I32x16 odd = And(ShiftRight<16>(bits), BroadcastInt(1));
  const I32x16 rounded = AddInt(bits, AddInt(odd, BroadcastInt(0x7fff)));
  return SelectNan(a, Or(bits, BroadcastInt(0x400000)), rounded);
}
LODESTONE_SIMD F32x16 RoundBf16(F32x16 a) {
  return FromBits(And(RoundBf16Bits(a), BroadcastInt(static_cast<int32_t>(0xffff0000u))));
}
LODESTONE_SIMD void StoreBf16(uint16_t* p, F32x16 a) { StoreHighHalves(p, RoundBf16Bits(a)); }
LODESTONE_SIMD void StoreBf16Part(uint16_t* p, F32x16 a, int64_t count) {
  alignas(64) uint16_t lanes[kLanes];
  StoreBf16(lanes, a);
  for (int64_t i = 0; i < count; ++i) p[i] = lanes[i];
}

// The sum over the lanes of each of 16 registers: lane L * 4 + E of the result is that of
// sums[L * 4 + E]. The tree of every sum: lane i + lane i + 8, then + 4, + 2, + 1.
LODESTONE_SIMD F32x16 ReduceAdd16(const F32x16* sums) {
  F32x16 folded[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    folded[i] = FoldHalves(sums[i], sums[4 + i], sums[8 + i], sums[12 + i]);
  }
  return FoldPairs88(FoldPairs44(folded[0], folded[1]), FoldPairs44(folded[2], folded[3]));
}
// The sum over the lanes, by the same tree.
LODESTONE_SIMD float ReduceAdd(F32x16 a) {
  const __m256 eight = _mm256_add_ps(LowHalf(a), HighHalf(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 0x55)));
}
// The largest lane. REQUIRES: no lane is NaN.
LODESTONE_SIMD float ReduceMax(F32x16 a) {
  const __m256 eight = _mm256_max_ps(LowHalf(a), HighHalf(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 0x55)));
}

// e^x within 2 units in the last place, subnormal results included; e^-inf is 0, NaN stays NaN.
// x = n ln 2 + r with ln 2 in two parts; a polynomial of degree 7 for e^r; 2^n in two factors.
LODESTONE_SIMD F32x16 Exp(F32x16 x) {
  const F32x16 clamped = Max(Broadcast(-104.0f), Min(Broadcast(89.0f), x));
  const F32x16 n = RoundToInteger(Mul(clamped, Broadcast(1.44269504f)));
  F32x16 r = NegFma(n, Broadcast(0.693359375f), clamped);
  r = NegFma(n, Broadcast(-2.12194440e-4f), r);
  F32x16 poly = Broadcast(1.9875691500e-4f);
  poly = Fma(poly, r, Broadcast(1.3981999507e-3f));
  poly = Fma(poly, r, Broadcast(8.3334519073e-3f));
  poly = Fma(poly, r, Broadcast(4.1665795894e-2f));
  poly = Fma(poly, r, Broadcast(1.6666665459e-1f));
  poly = Fma(poly, r, Broadcast(5.0000001201e-1f));
  poly = Add(Fma(poly, Mul(r, r), r), Broadcast(1.0f));
  const I32x16 power = ToInt(n);
  const I32x16 half = ShiftRightSigned<1>(power);
  const I32x16 bias = BroadcastInt(127);
  const F32x16 first = FromBits(ShiftLeft<23>(AddInt(half, bias)));
  const F32x16 second = FromBits(ShiftLeft<23>(AddInt(SubInt(power, half), bias)));
  return Mul(Mul(poly, first), second);
}
LODESTONE_SIMD F32x16 Sigmoid(F32x16 x) {
  const F32x16 one = Broadcast(1.0f);
  return Div(one, Add(one, Exp(Sub(Zero(), x))));
}
LODESTONE_SIMD F32x16 Silu(F32x16 x) {
  return Div(x, Add(Broadcast(1.0f), Exp(Sub(Zero(), x))));
}

// An activation row: bf16 or fp32, `i` counts elements.
template <bool kBf16>
LODESTONE_SIMD F32x16 LoadAct(const void* row, int64_t i) {
  if constexpr (kBf16) return LoadBf16(static_cast<const uint16_t*>(row) + i);
  else return Load(static_cast<const float*>(row) + i);
}
template <bool kBf16>
LODESTONE_SIMD void StoreAct(void* row, int64_t i, F32x16 a) {
  if constexpr (kBf16) StoreBf16(static_cast<uint16_t*>(row) + i, a);
  else Store(static_cast<float*>(row) + i, a);
}
template <bool kBf16>
LODESTONE_SIMD F32x16 RoundAct(F32x16 a) {
  if constexpr (kBf16) return RoundBf16(a);
  else return a;
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

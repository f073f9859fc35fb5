#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#include "kernels/cpu/simd_avx512.h"
#else
#include "kernels/cpu/simd_avx2.h"
#endif

// Sixteen fp32 lanes: one AVX-512 register, or two AVX2 registers. Every function does the same
// arithmetic in the same order on both, so results are the same to the bit.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {

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
LODESTONE_SIMD F32x16 Silu(F32x16 x) { return Div(x, Add(Broadcast(1.0f), Exp(Sub(Zero(), x)))); }

// An activation row: bf16 or fp32, `i` counts elements.
template <bool kBf16>
LODESTONE_SIMD F32x16 LoadAct(const void* row, int64_t i) {
  if constexpr (kBf16)
    return LoadBf16(static_cast<const uint16_t*>(row) + i);
  else
    return Load(static_cast<const float*>(row) + i);
}
template <bool kBf16>
LODESTONE_SIMD void StoreAct(void* row, int64_t i, F32x16 a) {
  if constexpr (kBf16)
    StoreBf16(static_cast<uint16_t*>(row) + i, a);
  else
    Store(static_cast<float*>(row) + i, a);
}
template <bool kBf16>
LODESTONE_SIMD F32x16 RoundAct(F32x16 a) {
  if constexpr (kBf16)
    return RoundBf16(a);
  else
    return a;
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "runtime/cache_format.h"

// Stored number formats to bf16 and fp32, the same values as kernels/numeric/. Codes of E8M0: 2^(b
// - 127), 255 is NaN.
namespace lodestone::cuda {

__device__ inline float Bf16ToFloat(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ inline void UnpackBf16(uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void UnpackBf16(const uint4& words, float (&values)[8]) {
  UnpackBf16(words.x, values[0], values[1]);
  UnpackBf16(words.y, values[2], values[3]);
  UnpackBf16(words.z, values[4], values[5]);
  UnpackBf16(words.w, values[6], values[7]);
}

__device__ inline uint16_t FloatToBf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ inline uint32_t MultiplyBf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
                                         reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(product);
}

// Both halves are the chosen half of `pair`: the product that uses them chooses, at no cost.
__device__ inline uint32_t BothHalves(uint32_t pair, bool high) {
  const __nv_bfloat162 halves = reinterpret_cast<const __nv_bfloat162&>(pair);
  const __nv_bfloat162 both = high ? __high2bfloat162(halves) : __low2bfloat162(halves);
  return reinterpret_cast<const uint32_t&>(both);
}

// 2^(code - 127) in both halves; 0 is the subnormal 2^-127.
__device__ inline uint32_t E8m0ToBf16x2(uint32_t code) {
  constexpr uint32_t kBothHalves = 0x10001u;
  if (code - 1 < 254) return code * (kBothHalves << 7);
  return kBothHalves * (code == 0 ? 0x40u : 0x7fc0u);
}

__device__ inline float E8m0ToFloat(uint32_t code) {
  return __uint_as_float(code == 0 ? 0x400000u : code == 255 ? 0x7fc00000u : code << 23);
}

// The two e2m1 codes of a byte (low nibble first) as bf16, times 2^-126: the codes' exponent and
// mantissa bits put at bf16's.
__device__ inline uint32_t SpreadE2m1Pair(uint32_t byte) {
  const uint32_t magnitudes = (byte * ((1u << 18) + (1u << 6))) & 0x01c001c0u;
  return ((byte * ((1u << 24) + (1u << 12))) & 0x80008000u) | magnitudes;
}
// The value, with any scale: two products, both exact.
__device__ inline uint32_t WidenE2m1Pair(uint32_t byte, uint32_t scale_pair) {
  constexpr uint32_t kTwoTo126 = 0x7e807e80u;
  return MultiplyBf16x2(MultiplyBf16x2(SpreadE2m1Pair(byte), kTwoTo126), scale_pair);
}

// prmt.b32 (PTX manual 9.7.9.7): four bytes of `low` and `high`, by the nibbles of `selector`,
// which are below 8. __byte_perm would mask them.
__device__ inline uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// Eight e2m1 codes (lowest nibble first) as bf16, times 2^-128: pairs[0] holds codes 0 and 2,
// pairs[1] codes 1 and 3, pairs[2] codes 4 and 6, pairs[3] codes 5 and 7. A magnitude is a byte of
// a table, which as the low byte of a bf16 number counts units of 2^-133; the high byte is the
// sign. `table_low` is kE2m1Low.
constexpr uint32_t kE2m1Low = 0x30201000;   // 32 x 0, 0.5, 1, 1.5
constexpr uint32_t kE2m1High = 0xc0806040;  // 32 x 2, 3, 4, 6
__device__ inline void SpreadE2m1(uint32_t codes, uint32_t table_low, uint32_t (&pairs)[4]) {
  const uint32_t magnitudes = codes & 0x77777777u;
  const uint32_t first = PickBytes(table_low, kE2m1High, magnitudes);  // bytes of codes 0 to 3
  const uint32_t second = PickBytes(table_low, kE2m1High, magnitudes >> 16);
  const uint32_t odd_signs = codes & 0x80808080u;
  const uint32_t even_signs = (codes * 16u) & 0x80808080u;
  pairs[0] = __byte_perm(first, even_signs, 0x5240);
  pairs[1] = __byte_perm(first, odd_signs, 0x5341);
  pairs[2] = __byte_perm(second, even_signs, 0x7260);
  pairs[3] = __byte_perm(second, odd_signs, 0x7361);
}

// Eight e2m1 codes (lowest nibble first) as bf16 times `scale_pair`, in order: exact. The bytes of
// a value are those of two tables; its sign goes to the high one.
__device__ inline uint4 WidenE2m1(uint32_t codes, uint32_t scale_pair) {
  constexpr uint32_t kHighSmall = 0x3f3f3f00;  // of 0, 0.5, 1, 1.5
  constexpr uint32_t kHighLarge = 0x40404040;  // of 2, 3, 4, 6
  constexpr uint32_t kLow = 0xc0800000;        // of both
  constexpr uint32_t kLowLarge = 0xc0804000;
  const uint32_t first = codes & 0x77777777u;
  const uint32_t second = first >> 16;
  const uint32_t even_signs = (codes * 16u) & 0x80808080u;
  const uint32_t odd_signs = codes & 0x80808080u;
  const uint32_t high = PickBytes(kHighSmall, kHighLarge, first) |
                        __byte_perm(even_signs, odd_signs, 0x5140);
  const uint32_t more_high = PickBytes(kHighSmall, kHighLarge, second) |
                             __byte_perm(even_signs, odd_signs, 0x7362);
  const uint32_t low = PickBytes(kLow, kLowLarge, first);
  const uint32_t more_low = PickBytes(kLow, kLowLarge, second);
  return {MultiplyBf16x2(__byte_perm(low, high, 0x5140), scale_pair),
          MultiplyBf16x2(__byte_perm(low, high, 0x7362), scale_pair),
          MultiplyBf16x2(__byte_perm(more_low, more_high, 0x5140), scale_pair),
          MultiplyBf16x2(__byte_perm(more_low, more_high, 0x7362), scale_pair)};
}

// Two e4m3 codes (low byte first) as bf16: exact, NaN stays NaN.
__device__ inline uint32_t WidenE4m3Pair(uint32_t codes) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 values = __half22float2(__half2(halves));
  return PackBf16(values.x, values.y);
}

__device__ inline float E4m3ToFloat(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// Element `i` of an index key row, without the factor of kFp8 (which multiplies the dot product).
template <IndexKeyFormat kFormat>
__device__ float IndexKeyElement(const uint8_t* payload, const uint8_t* scale, int i) {
  if constexpr (kFormat == IndexKeyFormat::kBf16) {
    return Bf16ToFloat(reinterpret_cast<const uint16_t*>(payload)[i]);
  } else if constexpr (kFormat == IndexKeyFormat::kFp8) {
    return E4m3ToFloat(payload[i]);
  } else {
    const uint32_t pair = WidenE2m1Pair(payload[i / 2], E8m0ToBf16x2(scale[i / kFp4Group]));
    return Bf16ToFloat(static_cast<uint16_t>(i % 2 == 0 ? pair & 0xffffu : pair >> 16));
  }
}

// Element `i` of a latent row of `dims` elements, the last `rope_dims` bf16 under kFp8.
__device__ inline float LatentElement(KvFormat format, const uint8_t* payload, const uint8_t* scale,
                                      int dims, int rope_dims, int i) {
  if (format == KvFormat::kBf16) return Bf16ToFloat(reinterpret_cast<const uint16_t*>(payload)[i]);
  const int coded = dims - rope_dims;
  if (i < coded) return E4m3ToFloat(payload[i]) * E8m0ToFloat(scale[i / kFp8KvGroup]);
  return Bf16ToFloat(reinterpret_cast<const uint16_t*>(payload + coded)[i - coded]);
}

}  // namespace lodestone::cuda

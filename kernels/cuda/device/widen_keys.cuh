#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/numeric.cuh"

// fp8 and fp4 index keys widened to bf16 in registers: the A operands of m64nXk16 products
// (wgmma.cuh), straight from a swizzled tile in shared memory. Thread t of a quad takes the codes
// of dims 4 t .. 4 t + 3 of every 16, which lie in one word (fp8) or half a word (fp4). Its columns
// of an operand are 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, so the products see the dims of every 16 in
// another order, into which ArrangeDims brings a query. A product adds its 16 terms in one step:
// their order changes no bit.
namespace lodestone::cuda {

// 16 dims (two 16-byte units of one row) in the order in which WidenFp8 or WidenFp4 gives a key's:
// pairs 0, 2, 4, 6 then 1, 3, 5, 7; or even dims, then odd ones.
template <IndexKeyFormat kFormat>
__device__ void ArrangeDims(uint4& first, uint4& second) {
  const uint4 a = first;
  const uint4 b = second;
  if constexpr (kFormat == IndexKeyFormat::kFp8) {
    first = {a.x, a.z, b.x, b.z};
    second = {a.y, a.w, b.y, b.w};
  } else {
    constexpr uint32_t kLowHalves = 0x5410;
    constexpr uint32_t kHighHalves = 0x7632;
    first = {__byte_perm(a.x, a.y, kLowHalves), __byte_perm(a.z, a.w, kLowHalves),
             __byte_perm(b.x, b.y, kLowHalves), __byte_perm(b.z, b.w, kLowHalves)};
    second = {__byte_perm(a.x, a.y, kHighHalves), __byte_perm(a.z, a.w, kHighHalves),
              __byte_perm(b.x, b.y, kHighHalves), __byte_perm(b.z, b.w, kHighHalves)};
  }
}

// What a thread reads of each tile: rows `row` and `row` + 8. Found once.
struct KeyLane {
  uint32_t offset;  // bytes from the tile to this thread's part of unit 0 of its first row
  uint32_t halves;  // kFp4: selects this thread's half of two words
  uint32_t scale;   // bytes from the tile's scales to those of its first row
};

// Rows of 128 (kFp8) or 64 bytes, unit u at u ^ (row % 8) or u ^ (row / 2 % 4).
template <IndexKeyFormat kFormat>
__device__ KeyLane FindKeyLane(int row) {
  const int thread = threadIdx.x % 4;
  const int offset = kFormat == IndexKeyFormat::kFp8 ? row * 128 + row % 8 * 16 + thread * 4
                                                     : row * 64 + row / 2 % 4 * 16 + thread / 2 * 4;
  KeyLane lane{static_cast<uint32_t>(offset), thread % 2 == 0 ? 0x5410u : 0x7632u,
               static_cast<uint32_t>(row * 4)};
  // Else the compiler finds them again for every tile.
  asm volatile("" : "+r"(lane.offset), "+r"(lane.halves), "+r"(lane.scale));
  return lane;
}

// The operands of a tile at shared address `keys`, from fp8 codes.
__device__ inline void WidenFp8(uint32_t keys, const KeyLane& lane, uint32_t (&a)[8][4]) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t word = (keys + lane.offset) ^ (step * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t codes = LoadShared(word + j * 8 * 128);
      a[step][j] = WidenE4m3Pair(codes);
      a[step][2 + j] = WidenE4m3Pair(codes >> 16);
    }
  }
}

// Keys widened with moderate scales are 1 / 512 of their value, so that one product with a factor
// that fits bf16 is enough.
constexpr float kModerateUnit = 512;
constexpr uint32_t kFactorBias = 0x08080808;

// Whether all scales of two rows are 2^-55 .. 2^8.
__device__ inline bool ModerateScales(const uint32_t (&scales)[2]) {
  // Codes 72 to 135 less 8 begin with the bits 01; a borrow from a smaller code shows in that code.
  const uint32_t wrong =
      ((scales[0] - kFactorBias) ^ 0x40404040u) | ((scales[1] - kFactorBias) ^ 0x40404040u);
  return (wrong & 0xc0c0c0c0u) == 0;
}

// The operands of a tile at shared address `keys`, from fp4 codes and the scales of both rows.
template <bool kModerate>
__device__ void WidenFp4(uint32_t keys, const KeyLane& lane, const uint32_t (&scales)[2],
                         uint32_t (&a)[8][4]) {
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    const uint32_t words = (keys + lane.offset) ^ (group * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t first = LoadShared(words + j * 8 * 64);
      const uint32_t second = LoadShared(words + j * 8 * 64 + 8);
      uint32_t pairs[4];
      SpreadE2m1(__byte_perm(first, second, lane.halves), pairs);
      if constexpr (kModerate) {
        const uint32_t code = __byte_perm(scales[j] - kFactorBias, 0, 0x4040u + 0x101u * group);
        const uint32_t factor = code * 128u + 0x3f803f80u;
#pragma unroll
        for (uint32_t& pair : pairs) pair = MultiplyBf16x2(pair, factor);
      } else {
        constexpr uint32_t kTwoTo64 = 0x5f805f80u;
        const uint32_t factor = E8m0ToBf16x2((scales[j] >> (8 * group)) & 255u);
#pragma unroll
        for (uint32_t& pair : pairs) {
          pair = MultiplyBf16x2(MultiplyBf16x2(MultiplyBf16x2(pair, kTwoTo64), kTwoTo64), factor);
        }
      }
      a[2 * group][j] = pairs[0];
      a[2 * group][2 + j] = pairs[1];
      a[2 * group + 1][j] = pairs[2];
      a[2 * group + 1][2 + j] = pairs[3];
    }
  }
}

// Either, by format; returns what the products must be multiplied
// by.
template <IndexKeyFormat kFormat>
__device__ float WidenKeys(uint32_t keys, uint32_t scale, const KeyLane& lane,
                           uint32_t (&a)[8][4]) {
  const uint32_t scales[2] = {LoadShared(scale + lane.scale), LoadShared(scale + lane.scale + 32)};
  if constexpr (kFormat == IndexKeyFormat::kFp8) {
    WidenFp8(keys, lane, a);
    return __uint_as_float(threadIdx.x % 2 == 0 ? scales[0] : scales[1]);
  } else if (__all_sync(~0u, ModerateScales(scales))) {
    WidenFp4<true>(keys, lane, scales, a);
    return kModerateUnit;
  } else {
    WidenFp4<false>(keys, lane, scales, a);
    return 1;
  }
}

}  // namespace lodestone::cuda

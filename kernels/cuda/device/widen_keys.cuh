#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

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
  uint32_t offset;     // bytes from the tile to this thread's part of unit 0 of its first row
  uint32_t halves;     // kFp4: selects this thread's half of two words
  uint32_t scale;      // bytes from the tile's scales to those of its first row
  uint32_t table_low;  // kFp4: kE2m1Low, read from memory: a constant would be moved for every use
};

// Rows of 128 (kFp8) or 64 bytes, unit u at u ^ (row % 8) or u ^ (row / 2 % 4).
template <IndexKeyFormat kFormat>
__device__ KeyLane FindKeyLane(int row, uint32_t table_low) {
  const int thread = threadIdx.x % 4;
  const int offset = kFormat == IndexKeyFormat::kFp8 ? row * 128 + row % 8 * 16 + thread * 4
                                                     : row * 64 + row / 2 % 4 * 16 + thread / 2 * 4;
  KeyLane lane{static_cast<uint32_t>(offset), thread % 2 == 0 ? 0x5410u : 0x7632u,
               static_cast<uint32_t>(row * 4), table_low};
  // Else the compiler finds them again for every tile.
  asm volatile("" : "+r"(lane.offset), "+r"(lane.halves), "+r"(lane.scale));
  return lane;
}

// The scales of this thread's two rows, of a tile whose scales are at shared address `scale`.
struct RowScales {
  uint32_t rows[2];  // kFp8: fp32; kFp4: four E8M0 codes
};
__device__ inline RowScales LoadScales(uint32_t scale, const KeyLane& lane) {
  return {{LoadShared(scale + lane.scale), LoadShared(scale + lane.scale + 32)}};
}

// The operands of a tile at shared address `keys`, from fp8 codes. `use(quarter)` is called when
// the 32 dims of each quarter, a[2 quarter] and a[2 quarter + 1], are there.
template <typename F>
__device__ void WidenFp8(uint32_t keys, const KeyLane& lane, const F& use, uint32_t (&a)[8][4]) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t word = (keys + lane.offset) ^ (step * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t codes = LoadShared(word + j * 8 * 128);
      a[step][j] = WidenE4m3Pair(codes);
      a[step][2 + j] = WidenE4m3Pair(codes >> 16);
    }
    if (step % 2 == 1) use(step / 2);
  }
}

// A quarter of the dims of one row with any scales, or, once they are known to be 2^-55 .. 2^8, in
// one product instead of three: 1 / kUnit of their value, with factors that fit bf16.
struct AnyRow {
  uint32_t scales;
  __device__ explicit AnyRow(uint32_t codes) : scales(codes) {}
  __device__ uint32_t Multiply(uint32_t pair, int quarter) const {
    constexpr uint32_t kTwoTo64 = 0x5f805f80u;
    return MultiplyBf16x2(MultiplyBf16x2(MultiplyBf16x2(pair, kTwoTo64), kTwoTo64),
                          E8m0ToBf16x2((scales >> (8 * quarter)) & 255u));
  }
};
struct ModerateRow {
  static constexpr float kUnit = 512;
  uint32_t factors[2];
  __device__ explicit ModerateRow(uint32_t codes) {
    const uint32_t less = codes - 0x08080808u;  // 1 / 512, and 2^128 of what SpreadE2m1 leaves
    factors[0] = __byte_perm(less, 0, 0x4140) * 128u + 0x3f803f80u;
    factors[1] = __byte_perm(less, 0, 0x4342) * 128u + 0x3f803f80u;
  }
  __device__ uint32_t Multiply(uint32_t pair, int quarter) const {
    return MultiplyBf16x2(pair, BothHalves(factors[quarter / 2], quarter % 2 != 0));
  }
};

// A thread's codes of a tile of fp4 keys: two words of each quarter of the dims of its two rows.
struct Fp4Codes {
  uint32_t words[4][2][2];

  __device__ void Load(uint32_t keys, const KeyLane& lane) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const uint32_t unit = (keys + lane.offset) ^ (quarter * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        words[quarter][j][0] = LoadShared(unit + j * 8 * 64);
        words[quarter][j][1] = LoadShared(unit + j * 8 * 64 + 8);
      }
    }
  }
  // The operands of one quarter: a[2 quarter] and a[2 quarter + 1].
  template <typename Row>
  __device__ void Widen(int quarter, const KeyLane& lane, const Row (&rows)[2],
                        uint32_t (&a)[8][4]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const auto& two = words[quarter][j];
      uint32_t pairs[4];
      SpreadE2m1(__byte_perm(two[0], two[1], lane.halves), lane.table_low, pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = rows[j].Multiply(pair, quarter);
      a[2 * quarter][j] = pairs[0];
      a[2 * quarter][2 + j] = pairs[1];
      a[2 * quarter + 1][j] = pairs[2];
      a[2 * quarter + 1][2 + j] = pairs[3];
    }
  }
};

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/numeric.cuh"

// fp4 index keys and queries as integers. A row of e2m1 codes whose group scales differ little is a
// row of small integers times one power of two, and so is a query that was rounded to fp4. Products
// of integers add exactly, and so do those of bf16 operands that hold the same values: their terms
// are multiples of one unit, and all sums are below 2^24 of it. Scales are powers of two, which
// commute with the rounding of every later step, so scores have the same bits either way. Keys or
// queries outside the limits below take the bf16 products.
namespace lodestone::cuda {

// What is far from 1 is left to bf16, so that nothing overflows or is rounded as a subnormal: keys
// whose smallest E8M0 scale is not one of kScales from kSmallestScale on (ModerateRow needs less);
// queries whose largest magnitude is not 2^-40 to 2^41, and weights that times a query's unit are
// neither 0 nor 2^-40 to 2^30.
constexpr uint32_t kSmallestScale = 72;
constexpr uint32_t kScales = 62;
constexpr uint32_t kQueryExponent = 40;
constexpr float kSmallestWeight = 0x1p-40f;
constexpr float kLargestWeight = 0x1p30f;

// --- Keys ---

// Two keys: the integers of group i are e2m1 * 4 times 1, 2 or 4, up to 96.
struct IntegerRows {
  uint2 multipliers;  // byte i of each: 16 times that, or 16, 32 or 48; 0: not a tile of integers
  float2 factors;     // 2^23 times what an integer counts: PositivePart divides by 2^23
};

// The keys of these E8M0 scales, four each, if those of all lanes are integers. kPlaces:
// multipliers by their places, 1 to 3. By a whole warp.
template <bool kPlaces>
__device__ inline IntegerRows FindIntegerRows(uint2 scales) {
  const uint32_t first = __vminu2(scales.x & 0xff00ffu, __byte_perm(scales.x, 0, 0x4341));
  const uint32_t second = __vminu2(scales.y & 0xff00ffu, __byte_perm(scales.y, 0, 0x4341));
  // The smallest of the first row in the low half, of the second in the high one.
  const uint32_t smallest =
      __vminu2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
  // 1, 2 or 3 of a group that fits; a byte overflows only if the smallest is 0.
  uint2 places = {scales.x - __byte_perm(smallest, 0, 0x0000) + 0x01010101u,
                  scales.y - __byte_perm(smallest, 0, 0x2222) + 0x01010101u};
  const uint32_t above = smallest - kSmallestScale * 0x10001u;
  const uint32_t far = (above | (above + (0x8000u - kScales) * 0x10001u)) & 0x80008000u;
  const bool fit = __all_sync(~0u, (((places.x | places.y) & 0xfcfcfcfcu) | far) == 0);
  if constexpr (!kPlaces) {
    places.x += (places.x >> 1) & places.x & 0x01010101u;
    places.y += (places.y >> 1) & places.y & 0x01010101u;
  }
  const uint32_t unit = fit ? 16 : 0;
  // 2^(smallest - 127) / 4, and 2^23 for PositivePart.
  return {{places.x * unit, places.y * unit},
          {__uint_as_float((smallest << 23) + (21u << 23)),
           __uint_as_float(((smallest & 0xff0000u) << 7) + (21u << 23))}};
}

// What a thread reads of each tile, whose rows are `row` and `row` + 8. Found once.
struct IntegerLane {
  uint32_t keys;        // bytes from the tile to this thread's codes of its first row
  uint32_t multiplier;  // bytes from the tile's multipliers to this thread's
  uint32_t factor;      // bytes from the tile's factors to that of the row this thread may store
  uint32_t minus_one;   // read from memory: the compiler would not multiply by a constant
};

// Thread t of a quad takes the codes of group t. Rows of 64 bytes, unit u at u ^ (row / 2 % 4).
__device__ inline IntegerLane FindIntegerLane(int row, uint32_t minus_one) {
  const int thread = threadIdx.x % 4;
  const int unit = thread ^ (row / 2 % 4);
  IntegerLane lane{static_cast<uint32_t>(row * 64 + unit * 16),
                   static_cast<uint32_t>(row * 4 + thread),
                   static_cast<uint32_t>((row + thread % 2 * 8) * 4), minus_one};
  asm volatile("" : "+r"(lane.keys), "+r"(lane.multiplier), "+r"(lane.factor));
  return lane;
}

// Shared addresses of what a thread reads of a stage of the ring.
struct IntegerPlaces {
  uint32_t keys;  // codes of its first row
  uint32_t multipliers;
  uint32_t factor;
  uint32_t barrier;  // key_full

  __device__ IntegerPlaces Further(uint32_t stages) const {
    return {keys + stages * (kTileEntries * 64), multipliers + stages * (kTileEntries * 4),
            factor + stages * (kTileEntries * 4), barrier + stages * 8};
  }
};

__device__ inline uint32_t MultiplyAdd(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// The integers of a group's codes: of positive ones by code, and of negative ones, halved and from
// 128 on downwards, by the code's complement. prmt.b32 copies a byte's sign bit where the highest
// bit of a selector's nibble is set (PTX manual 9.7.9.7), which is 0 in all of these bytes: so a
// look-up gives 0 where the other one applies.
struct IntegerTable {
  uint32_t positive[2];
  uint32_t negative[2];

  __device__ explicit IntegerTable(const uint4& table)
      : positive{table.x, table.y}, negative{table.z, table.w} {}
  __device__ uint4 Pack() const { return {positive[0], positive[1], negative[0], negative[1]}; }

  // `multiplier` 1, 2 or 4.
  __device__ explicit IntegerTable(uint32_t multiplier) {
    constexpr uint32_t kLow = 0x03020100;  // 2 * e2m1
    constexpr uint32_t kHigh = 0x0c080604;
    constexpr uint32_t kLowBackwards = 0x0406080c;   // of codes 7 to 4
    constexpr uint32_t kHighBackwards = 0x00010203;  // of codes 3 to 0
    positive[0] = 2 * kLow * multiplier;
    positive[1] = 2 * kHigh * multiplier;
    negative[0] = 0x80808080u - kLowBackwards * multiplier;
    negative[1] = 0x00808080u - kHighBackwards * multiplier;
  }
  // The low four codes as s8. 2 (128 - n) is -2n in a byte, and carries nothing into the next one.
  __device__ uint32_t Widen(uint32_t codes, const IntegerLane& lane) const {
    // ~codes, not on the pipe of the look-ups.
    const uint32_t complement = MultiplyAdd(codes, lane.minus_one, lane.minus_one);
    return MultiplyAdd(PickBytes(negative[0], negative[1], complement), 2,
                       PickBytes(positive[0], positive[1], codes));
  }
};

// A thread's operands of a k-step from one word of each of its two rows.
__device__ inline void WidenIntegers(uint32_t first, uint32_t second,
                                     const IntegerTable (&tables)[2], const IntegerLane& lane,
                                     uint32_t (&a)[4]) {
  a[0] = tables[0].Widen(first, lane);
  a[1] = tables[1].Widen(second, lane);
  a[2] = tables[0].Widen(first >> 16, lane);
  a[3] = tables[1].Widen(second >> 16, lane);
}

// --- Sums ---

// max(x, 0) / 2^23 of |x| < 2^23, in one instruction at full rate: as a float x counts units of
// 2^-149, or is NaN, which saturation makes 0.
__device__ inline float PositivePart(int32_t x) {
  constexpr float kTwoTo126 = 0x1p126f;
  float result;
  asm("mul.sat.f32 %0, %1, %2;" : "=f"(result) : "f"(__int_as_float(x)), "f"(kTwoTo126));
  return result;
}

}  // namespace lodestone::cuda

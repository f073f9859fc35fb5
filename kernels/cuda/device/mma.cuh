#pragma once

#include <cstdint>

// mma.sync.m16n8k16 (PTX manual 9.7.14.5.8), bf16 with fp32 sums: acc += a b. Lane l holds rows
// l / 4 and l / 4 + 8 of `a` and column l / 4 of `b`; a word is two inputs k.
namespace lodestone::cuda {

__device__ inline void MultiplyTile(float (&acc)[4], uint32_t a_low, uint32_t a8_low,
                                    uint32_t a_high, uint32_t a8_high, uint32_t b_low,
                                    uint32_t b_high) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a_low), "r"(a8_low), "r"(a_high), "r"(a8_high), "r"(b_low), "r"(b_high));
}

// 32 inputs of 16 rows and 8 columns. Lane l holds inputs 8 * (l % 4) .. + 7 of its rows and its
// column, which is a permutation of the inputs that is the same for both and so does not matter to
// the sum, and lets every lane load 16 contiguous bytes.
__device__ inline void MultiplyTile32(float (&acc)[4], const uint4& a, const uint4& a8,
                                      const uint4& b) {
  MultiplyTile(acc, a.x, a8.x, a.y, a8.y, b.x, b.y);
  MultiplyTile(acc, a.z, a8.z, a.w, a8.w, b.z, b.w);
}

}  // namespace lodestone::cuda

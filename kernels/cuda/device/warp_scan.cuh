#pragma once

#include <cstdint>

namespace lodestone::cuda {

// Makes each of some values the sum over the lanes up to this one; together, so that they do not
// wait for each other. By a whole warp.
template <int kCount>
__device__ inline void ScanWarp(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      // shfl.sync (9.7.9.6): its predicate is whether there is a lane so far below.
      asm volatile(
          "{\n"
          ".reg .u32 below;\n"
          ".reg .pred valid;\n"
          "shfl.sync.up.b32 below|valid, %0, %1, 0, -1;\n"
          "@valid add.u32 %0, %0, below;\n"
          "}\n"
          : "+r"(values[i])
          : "r"(offset));
    }
  }
}
__device__ inline uint32_t ScanWarp(uint32_t value) {
  uint32_t values[1] = {value};
  ScanWarp(values);
  return values[0];
}

}  // namespace lodestone::cuda

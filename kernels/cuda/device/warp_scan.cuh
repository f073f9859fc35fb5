#pragma once

#include <cstdint>

namespace lodestone::cuda {

// The sum of `value` over the lanes up to this one. By a whole warp.
__device__ inline uint32_t ScanWarp(uint32_t value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    // shfl.sync (9.7.9.6): its predicate is whether there is a lane so far below.
    asm volatile(
        "{\n"
        ".reg .u32 below;\n"
        ".reg .pred valid;\n"
        "shfl.sync.up.b32 below|valid, %0, %1, 0, -1;\n"
        "@valid add.u32 %0, %0, below;\n"
        "}\n"
        : "+r"(value)
        : "r"(offset));
  }
  return value;
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

// Four 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp: lane l
// holds columns 2 (l % 4) + {0, 1} of row l / 4 of each, and gives the address of row l % 8 (16
// bytes, aligned) of matrix l / 8.
namespace lodestone::cuda {

// ldmatrix (PTX manual 9.7.14.5.15).
__device__ inline void LoadMatrices(uint32_t (&words)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row_address)
               : "memory");
}

// stmatrix (9.7.14.5.16).
__device__ inline void StoreMatrices(uint32_t row_address, uint32_t a, uint32_t b, uint32_t c,
                                     uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(a),
      "r"(b), "r"(c), "r"(d)
      : "memory");
}

// The same, each matrix transposed on its way.
__device__ inline void StoreMatricesTransposed(uint32_t row_address, uint32_t a, uint32_t b,
                                               uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// movmatrix (9.7.14.5.17): one such matrix transposed.
__device__ inline uint32_t TransposeMatrix(uint32_t words) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(words));
  return result;
}

}  // namespace lodestone::cuda

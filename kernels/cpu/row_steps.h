#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/rope.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd_table.h"
#include "runtime/cache_format.h"

// Steps that several ops do to one activation row (bf16 or fp32), between SIMD and the scalar
// codecs of kernels/numeric.
namespace lodestone::cpu {

inline constexpr int64_t kMaxRowDims = 1024;  // of a latent or index key

// Rotates the last rope.dims of x[0, dims).
void RotateTail(const SimdTable& simd, const RopeRow& rope, std::byte* x, int64_t dims, bool bf16);

// QDQ8 in groups of 64, QDQ4 in groups of 32, of x[0, n) in place.
void RoundFp8Groups(const SimdTable& simd, std::byte* x, int64_t n, bool bf16);
void RoundFp4Groups(const SimdTable& simd, std::byte* x, int64_t n, bool bf16);
// Puts widened e4m3 codes in place of x[0, n); returns their common scale.
float CodeFp8Row(const SimdTable& simd, std::byte* x, int64_t n, bool bf16);
// Hadamard transform times n^-1/2, rounded.
void TransformRow(const SimdTable& simd, std::byte* x, int64_t n, bool bf16);

void StoreLatent(const SimdTable& simd, const std::byte* x, bool bf16, int64_t dims,
                 int64_t rope_dims, KvFormat format, const StoredRow& stored);
void StoreIndexKey(const SimdTable& simd, const std::byte* x, bool bf16, int64_t dims,
                   IndexKeyFormat format, const StoredRow& stored);

}  // namespace lodestone::cpu

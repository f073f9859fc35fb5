#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sparse_attention.h"

// The products of one step of sparse attention, 64 heads x 64 keys of 512 dims, by a warpgroup, as
// sparse_attention_blocks.cu and sparse_attention_prefill.cu have them: the same instructions in
// the same order, so the same bits. Queries and keys lie in slices of 64 dims, kLatentSliceBytes
// each, swizzled as device/wgmma.cuh describes.
namespace lodestone::cuda {

// Slices of the queries that a warpgroup keeps in registers; the others stay in shared memory.
inline constexpr int kQueryRegisterSlices = 6;

// A operands of the scores' products.
using QueryRegisters = uint32_t[kQueryRegisterSlices * 4][4];

// Takes the first slices of the queries from a stage.
__device__ inline void ReadQuery(const uint8_t* stage, QueryRegisters& query) {
  const int thread = threadIdx.x % 128;
  const int row = thread / 32 * 16 + thread % 16;
  const uint32_t from = SharedAddress(stage) + row * 128;
#pragma unroll
  for (int i = 0; i < kQueryRegisterSlices * 4; ++i) {
    const int unit = (i % 4 * 2 + thread % 32 / 16) ^ (row % 8);
    LoadMatrices(query[i], from + i / 4 * kLatentSliceBytes + unit * 16);
  }
}

// Queues scores[64 heads, 64 keys] of the keys in a stage. `rest`: the other slices of the queries.
__device__ inline void QueueScores(const QueryRegisters& query, const uint8_t* rest,
                                   const uint8_t* stage, float (&scores)[32]) {
  const uint64_t keys = RowTileDescriptor(SharedAddress(stage));
  const uint64_t rest_tile = RowTileDescriptor(SharedAddress(rest));
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kAttentionDims / 16; ++i) {
    const uint64_t b = AdvanceTile(keys, i / 4 * kLatentSliceBytes + i % 4 * 32);
    if (i < kQueryRegisterSlices * 4) {
      WgmmaRegisterA(scores, query[i], b, i != 0);
    } else {
      const int at = (i / 4 - kQueryRegisterSlices) * kLatentSliceBytes + i % 4 * 32;
      WgmmaSharedA(scores, AdvanceTile(rest_tile, at), b, true);
    }
  }
  WgmmaCommit();
}

// One half of the dims of 64 heads; two products of 128 dims each, since an instruction over 256
// needs more registers than a thread has at the kernel's start.
using HalfSums = float[2][64];

// sums += probabilities, bf16 [heads][keys], x one half of the dims of the values in a stage.
__device__ inline void AddValues(const uint8_t* probs, const uint8_t* values, HalfSums& sums) {
  const uint64_t probs_tile = RowTileDescriptor(SharedAddress(probs));
  const uint64_t base = ColumnTileDescriptor(SharedAddress(values), kLatentSliceBytes);
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kAttentionKeys / 16; ++i) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      WgmmaSharedAColumns(sums[part], AdvanceTile(probs_tile, i * 32),
                          AdvanceTile(base, part * 2 * kLatentSliceBytes + i * 16 * 128), true);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(sums[0]);
  HoldRegisters(sums[1]);
}

// Queues the products of part `part` of AddValues alone: sums[part].
__device__ inline void QueueValues(const uint8_t* probs, const uint8_t* values, int part,
                                   float (&sums)[64]) {
  const uint64_t probs_tile = RowTileDescriptor(SharedAddress(probs));
  const uint64_t base =
      ColumnTileDescriptor(SharedAddress(values) + part * 2 * kLatentSliceBytes, kLatentSliceBytes);
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < kAttentionKeys / 16; ++i) {
    WgmmaSharedAColumns(sums, AdvanceTile(probs_tile, i * 32), AdvanceTile(base, i * 16 * 128),
                        true);
  }
  WgmmaCommit();
}

}  // namespace lodestone::cuda

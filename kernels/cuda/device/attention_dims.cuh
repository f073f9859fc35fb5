#pragma once

#include <cstdint>

#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/sparse_attention.h"

// Results of sparse_attention_cluster.cu and sparse_attention_token.cu: a block's dims of a head.
namespace lodestone::cuda {

// Stores this block's dims 8 i + 2 pair + {0, 1} of one head, number 4 i + 2 j + {0, 1} of the
// sums: times `factor`, rounded and rotated back.
template <typename Tile, typename Shared>
__device__ inline void StoreHeadDims(const SparseAttentionArgs& args, const ClusterWork& work,
                                     int head, int pair, int j, float factor,
                                     const float (&sums)[Tile::kBlockDims / 2],
                                     const Shared& shared) {
  constexpr int kFirstRope = (Tile::kDims - Tile::kRopeDims) / Tile::kBlockDims;
  uint16_t* const out = args.out + (work.token * args.num_heads + head) * Tile::kDims +
                        work.rank * Tile::kBlockDims + 2 * pair;
#pragma unroll
  for (int i = 0; i < Tile::kBlockDims / 8; ++i) {  // blocks of 8 dims
    uint32_t word = PackBf16(sums[4 * i + 2 * j] * factor, sums[4 * i + 2 * j + 1] * factor);
    if (work.rank >= kFirstRope) word = RotateBack(word, shared.angles[4 * i + pair]);
    *reinterpret_cast<uint32_t*>(out + 8 * i) = word;
  }
}

}  // namespace lodestone::cuda

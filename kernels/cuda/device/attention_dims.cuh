#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sparse_attention.h"

// A block's dims of the output in sparse_attention_cluster.cu: sums and results. Those of a head
// are stored by sparse_attention_token.cu, too.
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

template <typename Tile>
__device__ inline uint64_t ValuesDescriptor(uint32_t shared_address) {
  if constexpr (Tile::kBlockDims == 32) {
    return NarrowTileDescriptor(shared_address);
  } else {
    return ColumnTileDescriptor(shared_address, Tile::kKeys * Tile::kValueRowBytes);
  }
}

// sums = probabilities x this block's dims of the values.
template <typename Tile>
__device__ inline void SumValues(int num_steps, const ClusterShared<Tile>& shared,
                                 float (&sums)[Tile::kBlockDims / 2]) {
  using Results = StepResults<Tile::kHeads, Tile::kMaxSteps>;
#pragma unroll
  for (float& sum : sums) sum = 0;
  uint64_t probs = RowTileDescriptor(SharedAddress(shared.results.steps));
  uint64_t values = ValuesDescriptor<Tile>(SharedAddress(shared.values));
  WgmmaFence();
#pragma unroll 1
  for (int step = 0; step < num_steps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaSharedAColumns(sums, AdvanceTile(probs, i * 32),
                          AdvanceTile(values, i * 16 * Tile::kValueRowBytes), true);
    }
    probs = AdvanceTile(probs, sizeof(typename Results::Step));
    values = AdvanceTile(values, sizeof(shared.values[0]));
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(sums);
}

// Divides, rounds, rotates back and stores this block's dims.
template <typename Tile>
__device__ inline void StoreDims(const SparseAttentionArgs& args, const ClusterWork& work,
                                 const float (&sums)[Tile::kBlockDims / 2],
                                 const ClusterShared<Tile>& shared) {
  const int pair = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) + 8 * j;
    const int head = work.head + row;
    if (row >= Tile::kHeads || head >= args.num_heads) continue;
    StoreHeadDims<Tile>(args, work, head, pair, j, shared.inverse[row], sums, shared);
  }
}

}  // namespace lodestone::cuda

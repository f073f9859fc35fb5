#pragma once

#include <cstdint>

#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_integer.cuh"

// Products of the index scores kernel on the tensor cores: starting and ending them.
namespace lodestone::cuda {

__device__ constexpr uint64_t DescriptorStep(int step, int half_bytes) {
  return static_cast<uint64_t>((step / 4 * half_bytes + step % 4 * 32) / 16);
}

// The queries of the buffer at shared address `query`. The same in all threads; the shuffle lets
// the compiler know.
__device__ inline uint64_t QueryDescriptor(uint32_t query) {
  return RowTileDescriptor(__shfl_sync(~0u, query, 0));
}

// Starts acc (+)= a quarter of the dims of widened keys times those of the queries. The products of
// one tile end before its next branch: the compiler would wait for each of them otherwise.
template <typename Tile>
__device__ void StartQuarter(const uint32_t (&a)[8][4], uint64_t queries, int quarter,
                             float (&acc)[Tile::kColumns / 2]) {
  WgmmaFence();
#pragma unroll
  for (int step = 2 * quarter; step < 2 * quarter + 2; ++step) {
    WgmmaRegisterA(acc, a[step], queries + DescriptorStep(step, Tile::kQueryHalfBytes), step != 0);
  }
  WgmmaCommit();
}

// Starts acc = bf16 keys times the queries; the keys at shared address `keys`.
template <typename Tile>
__device__ void StartProducts(uint32_t keys, uint32_t query, float (&acc)[Tile::kColumns / 2]) {
  // The same in all threads; the shuffle lets the compiler know.
  const uint64_t key_tile = RowTileDescriptor(__shfl_sync(~0u, keys, 0));
  const uint64_t queries = QueryDescriptor(query);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < IndexDims::kDims / 16; ++step) {
    WgmmaSharedA(acc, key_tile + DescriptorStep(step, Tile::kPayloadBytes / 2),
                 queries + DescriptorStep(step, Tile::kQueryHalfBytes), step != 0);
  }
  WgmmaCommit();
}

template <typename T, int kSize>
__device__ void FinishProducts(T (&acc)[kSize]) {
  WgmmaWait<0>();
  HoldRegisters(acc);
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_groups.cuh"
#include "kernels/cuda/device/attention_token.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The products of sparse_attention_token.cu: scores of a block's keys, its dims of the output.
namespace lodestone::cuda {

// scores[64 keys, 16 heads]. By the first warpgroup, a group of keys a warp; keys pass through
// registers, from where products start twice as fast as from shared memory.
__device__ inline void ScoreKeys(TokenShared& shared, GroupScores& scores) {
  constexpr int kPieces = 4;
  constexpr int kProducts = TokenTile::kDims / 16 / kPieces;
  const uint64_t query = RowTileDescriptor(SharedAddress(shared.query));
  const int warp = static_cast<int>(threadIdx.x / 32);
  const uint32_t from =
      SharedAddress(
          shared.keys[warp * TokenTile::kGroupKeys + static_cast<int>(threadIdx.x % 16)]) +
      threadIdx.x % 32 / 16 * 16;
  uint32_t words[TokenTile::kDims / 16][4];
  const auto load_piece = [&](int piece) {
#pragma unroll
    for (int i = piece * kProducts; i < (piece + 1) * kProducts; ++i) {
      LoadMatrices(words[i], from + i * 32);
    }
  };
  BarrierWait(&shared.query_full, 0);
  BarrierWait(&shared.keys_full[warp], 0);
  __syncwarp();
  load_piece(0);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    // A product holds the warp up until it nearly ends: the next ones' keys before it.
    if (piece + 1 < kPieces) load_piece(piece + 1);
    WgmmaFence();
#pragma unroll
    for (int i = piece * kProducts; i < (piece + 1) * kProducts; ++i) {
      WgmmaRegisterA(scores, words[i],
                     AdvanceTile(query, i / 4 * (TokenTile::kHeads * 128) + i % 4 * 32), i != 0);
    }
    WgmmaCommit();
  }
  WgmmaWait<0>();
  HoldRegisters(scores);
}

// Probabilities of a batch of groups in a warp's registers.
using SumProbabilities = uint4[TokenTile::kSumGroups];
// Zeros where there is no group.
__device__ inline void LoadSomeGroups(const GroupResult* results, int first, int num_groups,
                                      SumProbabilities& probs) {
#pragma unroll
  for (int i = 0; i < TokenTile::kSumGroups; ++i) {
    probs[i] = {};
    if (first + i < num_groups) probs[i] = results[first + i].probs[threadIdx.x % 32];
  }
}
__device__ inline void QueueSomeGroups(const SumProbabilities& probs, uint64_t values,
                                       float (&sums)[TokenTile::kBlockDims / 2]) {
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < TokenTile::kSumGroups; ++i) {
    const uint32_t words[4] = {probs[i].x, probs[i].y, probs[i].z, probs[i].w};
    WgmmaRegisterAColumns(
        sums, words, AdvanceTile(values, i * (TokenTile::kGroupKeys * TokenTile::kValueRowBytes)),
        true);
  }
  WgmmaCommit();
}

// sums = probabilities x this block's dims of the values. By the first warpgroup, whose first warp
// has all heads.
__device__ inline void SumTokenValues(const GroupResult* results, int num_groups,
                                      TokenShared& shared,
                                      float (&sums)[TokenTile::kBlockDims / 2]) {
  SumProbabilities probs[2] = {};
#pragma unroll
  for (float& sum : sums) sum = 0;
  constexpr int kBatchBytes =
      TokenTile::kSumGroups * TokenTile::kGroupKeys * TokenTile::kValueRowBytes;
  uint64_t values = NarrowTileDescriptor(SharedAddress(shared.values));
#pragma unroll 1
  for (int first = 0; first < num_groups; first += 2 * TokenTile::kSumGroups) {
    if (threadIdx.x < 32) {
      LoadSomeGroups(results, first, num_groups, probs[0]);
      LoadSomeGroups(results, first + TokenTile::kSumGroups, num_groups, probs[1]);
    }
    __syncwarp();
    if (first == 0) {
      BarrierWait(&shared.values_full, 0);
      SharedProxyFence();
    }
    QueueSomeGroups(probs[0], values, sums);
    if (first + TokenTile::kSumGroups < num_groups) {
      QueueSomeGroups(probs[1], AdvanceTile(values, kBatchBytes), sums);
    }
    values = AdvanceTile(values, 2 * kBatchBytes);
    WgmmaWait<0>();
  }
  HoldRegisters(sums);
}

}  // namespace lodestone::cuda

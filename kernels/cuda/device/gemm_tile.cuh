#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/gemm.h"

// The narrow product tile: up to 16 * kRowTiles rows of x by 8 * kColumnTiles outputs by one block of
// kSumSlices warps, each of which sums one slice of the inputs straight from global memory.
namespace lodestone::cuda {

// Inputs of one slice: a multiple of 64.
__host__ __device__ inline int SliceInputs(int64_t k) {
  return static_cast<int>((k + kSumSlices * 64 - 1) / (kSumSlices * 64) * 64);
}

template <int kRowTiles, int kColumnTiles>
struct NarrowTile {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kThreads = 32 * kSumSlices;
  static constexpr int kSteps = kRowTiles == 1 ? 4 : 2;  // of 32 inputs, loaded together
  // Padded so that the rows of a fragment lie in different banks.
  float sums[kSumSlices][kRows][kColumns + 4];
};

__device__ inline uint4 LoadWords(const uint16_t* row, int at, bool valid) {
  return valid ? __ldg(reinterpret_cast<const uint4*>(row + at)) : uint4{0, 0, 0, 0};
}

// tile.sums[slice] of this warp's slice. `row_of(i)` is the address of row i of x or null beyond the
// last; `weight` is [columns, k], `columns` of it exist.
template <int kRowTiles, int kColumnTiles, typename RowOf>
__device__ void SumSlice(const RowOf& row_of, const uint16_t* weight, int columns, int k,
                         NarrowTile<kRowTiles, kColumnTiles>& tile) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = static_cast<int>(threadIdx.x) / 32;
  const int slice_inputs = SliceInputs(k);
  const int end = min(k, (slice + 1) * slice_inputs);
  const uint16_t* x[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    x[i][0] = row_of(16 * i + lane / 4);
    x[i][1] = row_of(16 * i + lane / 4 + 8);
  }
  float acc[kRowTiles][kColumnTiles][4] = {};
  for (int first = slice * slice_inputs; first < end; first += 32 * Tile::kSteps) {
    uint4 b[Tile::kSteps][kColumnTiles];
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      const int at = first + 32 * step + 8 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const int column = 8 * j + lane / 4;
        b[step][j] = LoadWords(weight + static_cast<int64_t>(column) * k, at,
                               at < end && column < columns);
      }
    }
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      const int at = first + 32 * step + 8 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint4 a = LoadWords(x[i][0], at, at < end && x[i][0] != nullptr);
        const uint4 a8 = LoadWords(x[i][1], at, at < end && x[i][1] != nullptr);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) MultiplyTile32(acc[i][j], a, a8, b[step][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const int row = 16 * i + lane / 4;
      const int column = 8 * j + 2 * (lane % 4);
      tile.sums[slice][row][column] = acc[i][j][0];
      tile.sums[slice][row][column + 1] = acc[i][j][1];
      tile.sums[slice][row + 8][column] = acc[i][j][2];
      tile.sums[slice][row + 8][column + 1] = acc[i][j][3];
    }
  }
}

// The slices of one output in order; after a barrier.
template <typename Tile>
__device__ float AddSlices(const Tile& tile, int row, int column) {
  float sum = tile.sums[0][row][column];
  for (int slice = 1; slice < kSumSlices; ++slice) sum += tile.sums[slice][row][column];
  return sum;
}

}  // namespace lodestone::cuda

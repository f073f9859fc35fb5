#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/weight_words.cuh"
#include "kernels/cuda/gemm.h"

// The narrow product tile: up to 16 * kRowTiles rows of x by 8 * kColumnTiles outputs by one block
// of kSlices warps, each of which sums one slice of the inputs straight from global memory.
namespace lodestone::cuda {

// Inputs of one slice: a multiple of 64.
__host__ __device__ inline int SliceInputs(int64_t k, int slices) {
  return static_cast<int>((k + slices * 64 - 1) / (slices * 64) * 64);
}

template <int kRowTiles, int kColumnTiles, int kSumSlices = kFewSlices>
struct NarrowTile {
  static constexpr int kSlices = kSumSlices;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kThreads = 32 * kSlices;
  static constexpr int kSteps = kRowTiles == 1 ? 4 : 2;  // of 32 inputs, loaded together
  // Padded so that the rows of a fragment lie in different banks.
  float sums[kSlices][kRows][kColumns + 4];
};

__device__ inline uint4 LoadWords(const uint16_t* row, int at, bool valid) {
  return valid ? __ldg(reinterpret_cast<const uint4*>(row + at)) : uint4{0, 0, 0, 0};
}

// tile.sums[slice] of this warp's slice. `row_of(i)` is the address of row i of x or null beyond
// the last; `columns` rows of the weight exist.
template <WeightFormat kFormat, int kRowTiles, int kColumnTiles, int kSlices, typename RowOf>
__device__ void SumSlice(const RowOf& row_of, const WeightRows<kFormat>& weight, int columns,
                         NarrowTile<kRowTiles, kColumnTiles, kSlices>& tile) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles, kSlices>;
  const int k = weight.k;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = static_cast<int>(threadIdx.x) / 32;
  const int slice_inputs = SliceInputs(k, kSlices);
  const int end = min(k, (slice + 1) * slice_inputs);
  const uint16_t* x[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    x[i][0] = row_of(16 * i + lane / 4);
    x[i][1] = row_of(16 * i + lane / 4 + 8);
  }
  float acc[kRowTiles][kColumnTiles][4] = {};
  for (int first = slice * slice_inputs; first < end; first += 32 * Tile::kSteps) {
    WeightWordsOf<kFormat> words[Tile::kSteps][kColumnTiles];
    uint32_t weight_scale[Tile::kSteps][kColumnTiles];
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      const int at = first + 32 * step + 8 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const int column = 8 * j + lane / 4;
        const bool valid = at < end && column < columns;
        words[step][j] = weight.Load(column, at, valid);
        weight_scale[step][j] = weight.Scale(column, at, valid);
      }
    }
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      const int at = first + 32 * step + 8 * (lane % 4);
      uint4 b[kColumnTiles];
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        b[j] = WidenWords<kFormat>(words[step][j], weight_scale[step][j]);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint4 a = LoadWords(x[i][0], at, at < end && x[i][0] != nullptr);
        const uint4 a8 = LoadWords(x[i][1], at, at < end && x[i][1] != nullptr);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) MultiplyTile32(acc[i][j], a, a8, b[j]);
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
  for (int slice = 1; slice < Tile::kSlices; ++slice) sum += tile.sums[slice][row][column];
  return sum;
}

}  // namespace lodestone::cuda

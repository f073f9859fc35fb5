#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/weight_words.cuh"
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

// Inputs of x that share a scale where x passes through Q8 before the product (spec 4.2).
inline constexpr int kRoundedGroup = 128;
__host__ __device__ inline int NumRoundedGroups(int64_t k) {
  return static_cast<int>((k + kRoundedGroup - 1) / kRoundedGroup);
}

// scales[row * groups + group], the E8M0 bytes of `rows` rows of x. By all threads; complete after
// the barrier at its end.
template <typename RowOf>
__device__ void FindScales(const RowOf& row_of, int rows, int k, uint8_t* scales) {
  const int groups = NumRoundedGroups(k);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < rows * groups;
       i += static_cast<int>(blockDim.x) / 32) {
    const uint16_t* const row = row_of(i / groups);
    const int first = i % groups * kRoundedGroup + 4 * lane;
    float amax = 0;
    if (row != nullptr && first < k) {
      const uint2 words = *reinterpret_cast<const uint2*>(row + first);
      for (const uint32_t word : {words.x, words.y}) {
        amax = fmaxf(amax, fabsf(__uint_as_float(word << 16)));
        amax = fmaxf(amax, fabsf(__uint_as_float(word & 0xffff0000u)));
      }
    }
    amax = WarpMax(amax);
    if (lane == 0) scales[i] = static_cast<uint8_t>(Fp8GroupScale(amax));
  }
  __syncthreads();
}

// QDQ8 of eight inputs with one scale: exact products with powers of two around the code.
__device__ inline uint4 RoundWords(const uint4& words, uint32_t scale) {
  const float inverse = E8m0ToFloat(254 - scale);
  const uint32_t factor = E8m0ToBf16x2(scale);
  const auto round = [&](uint32_t word) {
    const float2 pair = {__uint_as_float(word << 16) * inverse,
                         __uint_as_float(word & 0xffff0000u) * inverse};
    const uint32_t codes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    return MultiplyBf16x2(WidenE4m3Pair(codes), factor);
  };
  return {round(words.x), round(words.y), round(words.z), round(words.w)};
}

// tile.sums[slice] of this warp's slice. `row_of(i)` is the address of row i of x or null beyond the
// last; `columns` rows of the weight exist; `scales` of FindScales if kRound.
template <bool kRound, WeightFormat kFormat, int kRowTiles, int kColumnTiles, typename RowOf>
__device__ void SumSlice(const RowOf& row_of, const WeightRows<kFormat>& weight, int columns,
                         const uint8_t* scales, NarrowTile<kRowTiles, kColumnTiles>& tile) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles>;
  const int k = weight.k;
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
        uint4 a = LoadWords(x[i][0], at, at < end && x[i][0] != nullptr);
        uint4 a8 = LoadWords(x[i][1], at, at < end && x[i][1] != nullptr);
        if constexpr (kRound) {
          const uint8_t* const scale =
              scales + (16 * i + lane / 4) * NumRoundedGroups(k) + min(at, k - 1) / kRoundedGroup;
          a = RoundWords(a, scale[0]);
          a8 = RoundWords(a8, scale[8 * NumRoundedGroups(k)]);
        }
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
  for (int slice = 1; slice < kSumSlices; ++slice) sum += tile.sums[slice][row][column];
  return sum;
}

}  // namespace lodestone::cuda

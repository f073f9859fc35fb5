#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/gemm_work.cuh"

// The wide product tile: 128 x 128 outputs a block, inputs and weights through a ring of shared
// memory, weights as they are stored; each warp widens the words that it multiplies.
namespace lodestone::cuda {

struct WideTile {
  static constexpr int kRows = 128;
  static constexpr int kColumns = 128;
  static constexpr int kInputs = 64;  // of one stage
  static constexpr int kStages = 4;
  static constexpr int kThreads = 256;
  static constexpr int kWarpRows = 64;     // 2 x 4 warps
  static constexpr int kWarpColumns = 32;
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static constexpr int kChunks = kInputs / 8;  // of 16 bytes in a row of a stage
};

template <WeightFormat kFormat>
struct WideShared {
  uint4 x[WideTile::kStages][WideTile::kRows][WideTile::kChunks];
  WeightWordsOf<kFormat> weight[WideTile::kStages][WideTile::kColumns][WideTile::kChunks];
};

// Where chunk `chunk` of row `row` lies, in a row of chunks of kBytes: the rows that are read at
// once, four chunks of each, use different banks.
template <int kBytes>
__device__ int ChunkPlace(int row, int chunk) {
  constexpr int kRowsOfBanks = 128 / (WideTile::kChunks * kBytes);
  return chunk ^ (row / kRowsOfBanks % 2 * 4);
}

// Rows of this thread: four, 32 apart; null beyond the last. `any` is an address for empty copies.
struct WideRows {
  const uint16_t* x[4];
  const uint8_t* weight[4];
  const void* any;
};

template <WeightFormat kFormat>
__device__ void LoadStage(const WideRows& rows, int first_input, int k, int stage,
                          WideShared<kFormat>& shared) {
  constexpr int kWordBytes = sizeof(WeightWordsOf<kFormat>);
  const int chunk = static_cast<int>(threadIdx.x) % WideTile::kChunks;
  const int at = first_input + 8 * chunk;
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / WideTile::kChunks + 32 * i;
    const bool in_x = at < k && rows.x[i] != nullptr;
    CopyAsync16(SharedAddress(&shared.x[stage][row][ChunkPlace<16>(row, chunk)]),
                in_x ? rows.x[i] + at : rows.any, in_x ? 16 : 0);
    const bool in_weight = at < k && rows.weight[i] != nullptr;
    CopyAsync<kWordBytes>(
        SharedAddress(&shared.weight[stage][row][ChunkPlace<kWordBytes>(row, chunk)]),
        in_weight ? rows.weight[i] + RowBytes<kFormat>(at) : rows.any, in_weight ? kWordBytes : 0);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

using WideSums = float[WideTile::kRowTiles][WideTile::kColumnTiles][4];

// The E8M0 codes of a block, in shared memory behind WideShared.
struct WideScales {
  const uint8_t* weight;  // [weight_groups][columns], if the weights are quantised
  int weight_groups;      // ScaleColumns
};

template <WeightFormat kFormat>
__device__ void MultiplyStage(const WideShared<kFormat>& shared, int stage, int first_input,
                              const WideScales& scales, WideSums& acc) {
  constexpr int kWordBytes = sizeof(WeightWordsOf<kFormat>);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp / 4 * WideTile::kWarpRows + lane / 4;
  const int first_column = warp % 4 * WideTile::kWarpColumns + lane / 4;
#pragma unroll
  for (int half = 0; half < WideTile::kInputs / 32; ++half) {
    const int chunk = 4 * half + lane % 4;
    uint4 b[WideTile::kColumnTiles];
#pragma unroll
    for (int j = 0; j < WideTile::kColumnTiles; ++j) {
      const int column = first_column + 8 * j;
      uint32_t scale = 0;
      if constexpr (IsQuantised(kFormat)) {
        // The last stage may reach beyond the inputs, where the words are zeros.
        const int group = min((first_input + 32 * half) / static_cast<int>(ScaledInputs(kFormat)),
                              scales.weight_groups - 1);
        scale = scales.weight[group * WideTile::kColumns + column];
      }
      b[j] = WidenWords<kFormat>(
          shared.weight[stage][column][ChunkPlace<kWordBytes>(column, chunk)], scale);
    }
#pragma unroll
    for (int i = 0; i < WideTile::kRowTiles; ++i) {
      const int row = first_row + 16 * i;
      const uint4 a = shared.x[stage][row][ChunkPlace<16>(row, chunk)];
      const uint4 a8 = shared.x[stage][row + 8][ChunkPlace<16>(row, chunk)];
#pragma unroll
      for (int j = 0; j < WideTile::kColumnTiles; ++j) MultiplyTile32(acc[i][j], a, a8, b[j]);
    }
  }
}

// total += acc; acc = 0: the end of a slice.
__device__ inline void EndSlice(WideSums& acc, WideSums& total) {
#pragma unroll
  for (int i = 0; i < WideTile::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < WideTile::kColumnTiles; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        total[i][j][r] += acc[i][j][r];
        acc[i][j][r] = 0;
      }
    }
  }
}

__device__ inline void StoreSums(const GemmArgs& args, const TileWork& work,
                                 const WideSums& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < WideTile::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < WideTile::kColumnTiles; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = warp / 4 * WideTile::kWarpRows + 16 * i + lane / 4 + r / 2 * 8;
        const int column = warp % 4 * WideTile::kWarpColumns + 8 * j + 2 * (lane % 4) + r % 2;
        if (row < work.rows && column < work.columns) {
          StoreOutput(args, work, row, column, total[i][j][r]);
        }
      }
    }
  }
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(WideTile::kThreads, 1)
    WideGemmKernel(const __grid_constant__ GemmParams params) {
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<WideShared<kFormat>*>(smem);
  const GemmArgs& args = params.args;
  WaitForPreviousKernel();
  TileWork work;
  if (!FindWork(params, WideTile::kRows, WideTile::kColumns, &work)) return;
  const int k = static_cast<int>(args.k);
  const WeightRows<kFormat> weight = WeightRowsOf<kFormat>(args, work);
  WideRows rows = {.any = weight.values};
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / WideTile::kChunks + 32 * i;
    rows.x[i] = RowAddress(args, work, row);
    rows.weight[i] = row < work.columns ? weight.Values(row, 0) : nullptr;
  }
  for (int stage = 0; stage < WideTile::kStages - 1; ++stage) {
    LoadStage(rows, stage * WideTile::kInputs, k, stage, shared);
  }
  uint8_t* const weight_scales = smem + sizeof(WideShared<kFormat>);
  const WideScales scales = {weight_scales, static_cast<int>(ScaleColumns(kFormat, k))};
  if constexpr (IsQuantised(kFormat)) {
    LoadScales<WideTile::kThreads, WideTile::kColumns>(weight, work.columns, weight_scales);
  };
  const int num_stages = (k + WideTile::kInputs - 1) / WideTile::kInputs;
  const int slice_stages = SliceInputs(k, params.slices) / WideTile::kInputs;
  WideSums acc = {};
  WideSums total = {};
  for (int stage = 0; stage < num_stages; ++stage) {
    asm volatile("cp.async.wait_group %0;" ::"n"(WideTile::kStages - 2) : "memory");
    __syncthreads();
    const int next = stage + WideTile::kStages - 1;
    LoadStage(rows, next * WideTile::kInputs, k, next % WideTile::kStages, shared);
    MultiplyStage<kFormat>(shared, stage % WideTile::kStages, stage * WideTile::kInputs,
                                   scales, acc);
    if ((stage + 1) % slice_stages == 0 || stage + 1 == num_stages) EndSlice(acc, total);
  }
  StoreSums(args, work, total);
}

}  // namespace lodestone::cuda

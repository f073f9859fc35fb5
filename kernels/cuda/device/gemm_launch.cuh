#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_many_launch.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/gemm_warpgroup.cuh"
#include "kernels/cuda/device/gemm_wide.cuh"
#include "kernels/cuda/device/gemm_work.cuh"
#include "kernels/cuda/launch.h"

// LaunchGemm for one format of weights: gemm_bf16.cu, gemm_fp8.cu and gemm_fp4.cu are one
// instantiation each.
namespace lodestone::cuda {

template <WeightFormat kFormat, int kRowTiles, int kColumnTiles, int kSlices>
__global__ void __launch_bounds__(32 * kSlices)
    NarrowGemmKernel(const __grid_constant__ GemmParams params) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles, kSlices>;
  extern __shared__ __align__(16) uint8_t smem[];
  auto& tile = *reinterpret_cast<Tile*>(smem);
  WaitForPreviousKernel();
  TileWork work;
  if (!FindWork(params, Tile::kRows, Tile::kColumns, &work)) return;
  const auto row_of = [&](int row) { return RowAddress(params.args, work, row); };
  SumSlice(row_of, WeightRowsOf<kFormat>(params.args, work), work.columns, tile);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * Tile::kColumns;
       i += Tile::kThreads) {
    const int row = i / Tile::kColumns;
    const int column = i % Tile::kColumns;
    if (row < work.rows && column < work.columns) {
      StoreOutput(params.args, work, row, column, AddSlices(tile, row, column));
    }
  }
}

// Row tiles whose inputs the L2 cache keeps while the blocks go through the weights.
constexpr int64_t kGroupRows = 16;

template <typename Kernel>
void LaunchTiles(Kernel kernel, const GemmArgs& args, int tile_rows, int tile_columns, int threads,
                 int shared_bytes, cudaStream_t stream) {
  const int64_t row_tiles =
      args.tiles != nullptr ? args.max_tiles : (args.rows + tile_rows - 1) / tile_rows;
  const int64_t column_tiles = (args.n + tile_columns - 1) / tile_columns;
  const int64_t group_rows = args.tiles != nullptr ? row_tiles : std::min(row_tiles, kGroupRows);
  const GemmParams params = {.args = args,
                             .row_tiles = static_cast<int>(row_tiles),
                             .group_rows = static_cast<int>(group_rows),
                             .column_tiles = static_cast<int>(column_tiles),
                             .slices = NumSumSlices(args)};
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(kernel,
                   {.blocks = row_tiles * column_tiles * args.parts,
                    .threads = threads,
                    .shared_bytes = shared_bytes},
                   stream, params);
}

template <WeightFormat kFormat, int kRowTiles, int kColumnTiles, int kSlices>
void LaunchNarrow(const GemmArgs& args, cudaStream_t stream) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles, kSlices>;
  LaunchTiles(NarrowGemmKernel<kFormat, kRowTiles, kColumnTiles, kSlices>, args, Tile::kRows,
              Tile::kColumns, Tile::kThreads, static_cast<int>(sizeof(Tile)), stream);
}

// Narrow columns where there are few outputs, so that there is a block for every processor.
template <WeightFormat kFormat, int kRowTiles>
void LaunchNarrowRows(const GemmArgs& args, cudaStream_t stream) {
  const int64_t outputs = args.n * args.parts * (args.tiles != nullptr ? 4 : 1);
  const bool many_slices = NumSumSlices(args) == kManySlices;
  if (outputs >= 4096) {
    if (many_slices) return LaunchNarrow<kFormat, kRowTiles, 4, kManySlices>(args, stream);
    return LaunchNarrow<kFormat, kRowTiles, 4, kFewSlices>(args, stream);
  }
  if (many_slices) return LaunchNarrow<kFormat, kRowTiles, 1, kManySlices>(args, stream);
  LaunchNarrow<kFormat, kRowTiles, 1, kFewSlices>(args, stream);
}

// Of the scales of a block of `outputs` outputs.
template <WeightFormat kFormat>
int64_t BlockScaleBytes(const GemmArgs& args, int outputs) {
  return IsQuantised(kFormat) ? outputs * ScaleColumns(kFormat, args.k) : 0;
}

template <WeightFormat kFormat>
void LaunchWide(const GemmArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes =
      sizeof(WideShared<kFormat>) + BlockScaleBytes<kFormat>(args, WideTile::kColumns);
  LaunchTiles(WideGemmKernel<kFormat>, args, WideTile::kRows, WideTile::kColumns,
              WideTile::kThreads, static_cast<int>(shared_bytes), stream);
}

template <WeightFormat kFormat, int kRows>
void LaunchWarpgroups(const GemmArgs& args, cudaStream_t stream) {
  using Tile = WarpgroupTile;
  const int64_t shared_bytes =
      sizeof(WarpgroupShared<kFormat, kRows>) + BlockScaleBytes<kFormat>(args, Tile::kOutputs);
  LaunchTiles(WarpgroupGemmKernel<kFormat, kRows>, args, kRows, Tile::kOutputs, Tile::kThreads,
              static_cast<int>(shared_bytes), stream);
}

// Blocks of 128 rows; of 64 for experts with so few, and where every block gets a processor.
template <WeightFormat kFormat>
void LaunchWarpgroupRows(const GemmArgs& args, cudaStream_t stream) {
  if (args.tiles != nullptr) {
    if (args.tile_rows <= 64) return LaunchWarpgroups<kFormat, 64>(args, stream);
    return LaunchWarpgroups<kFormat, 128>(args, stream);
  }
  const int64_t column_tiles = (args.n + 127) / 128 * args.parts;
  const int64_t blocks = (args.rows + 63) / 64 * column_tiles;
  if (args.rows <= 64 || blocks <= CurrentDevice().processors) {
    return LaunchWarpgroups<kFormat, 64>(args, stream);
  }
  LaunchWarpgroups<kFormat, 128>(args, stream);
}

// Whether warpgroups are faster than warps that sum a slice each: from 33 rows on if they are of
// experts or outputs are so many that most processors have a block.
inline bool IsForWarpgroups(const GemmArgs& args, int64_t rows) {
  constexpr int64_t kManyOutputs = 8192;
  if (!CurrentDevice().sm90 || args.k % WarpgroupTile::kInputs != 0) return false;
  return rows > 64 || (rows > 32 && (args.tiles != nullptr || args.n * args.parts >= kManyOutputs));
}

template <WeightFormat kFormat>
void LaunchGemmOf(const GemmArgs& args, cudaStream_t stream) {
  const int64_t rows = args.tiles != nullptr ? args.tile_rows : args.rows;
  if (args.ordered) return LaunchManyRows<kFormat>(args, stream);
  if (IsForWarpgroups(args, rows)) return LaunchWarpgroupRows<kFormat>(args, stream);
  if (rows <= 16) return LaunchNarrowRows<kFormat, 1>(args, stream);
  if (rows <= 32) return LaunchNarrowRows<kFormat, 2>(args, stream);
  if (rows <= 64) return LaunchNarrowRows<kFormat, 4>(args, stream);
  LaunchWide<kFormat>(args, stream);
}

}  // namespace lodestone::cuda

#pragma once

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
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

template <typename Kernel>
void LaunchTiles(Kernel kernel, const GemmArgs& args, int tile_rows, int tile_columns, int threads,
                 int shared_bytes, cudaStream_t stream) {
  const int64_t row_tiles =
      args.tiles != nullptr ? args.max_tiles : (args.rows + tile_rows - 1) / tile_rows;
  const int64_t column_tiles = (args.n + tile_columns - 1) / tile_columns;
  const GemmParams params = {.args = args,
                             .row_tiles = static_cast<int>(row_tiles),
                             .column_tiles = static_cast<int>(column_tiles),
                             .slices = NumSumSlices(args)};
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(kernel, {.blocks = row_tiles * column_tiles * args.parts,
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

template <WeightFormat kFormat>
void LaunchGemmOf(const GemmArgs& args, cudaStream_t stream) {
  const int64_t rows = args.tiles != nullptr ? args.tile_rows : args.rows;
  if (rows <= 16) return LaunchNarrowRows<kFormat, 1>(args, stream);
  if (rows <= 32) return LaunchNarrowRows<kFormat, 2>(args, stream);
  if (rows <= 64) return LaunchNarrowRows<kFormat, 4>(args, stream);
  const int64_t weight_scales =
      IsQuantised(kFormat) ? WideTile::kColumns * ScaleColumns(kFormat, args.k) : 0;
  LaunchTiles(WideGemmKernel<kFormat>, args, WideTile::kRows, WideTile::kColumns,
              WideTile::kThreads,
              static_cast<int>(sizeof(WideShared<kFormat>) + weight_scales), stream);
}

}  // namespace lodestone::cuda

#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/gemm_many.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tiles.h"

// The launcher of gemm_many.cuh.
namespace lodestone::cuda {

// Maps and flags of a product; the launcher adds the tiles.
template <typename Tile>
ManyParams ManyParamsOf(const GemmArgs& args) {
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B,
                                              CU_TENSOR_MAP_SWIZZLE_128B};
  const auto u64 = [](int64_t value) { return static_cast<uint64_t>(value); };
  const int64_t row_bytes = RowBytes<Tile::kFormat>(args.k);
  ManyParams params = {.args = args};
  params.x =
      MakeTensorMap({.data = args.x,
                     .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .rank = 2,
                     .size = {u64(args.grouped ? args.parts * args.k : args.k), u64(args.rows)},
                     .stride = {u64(2 * args.x_stride)},
                     .box = {Tile::kInputs, Tile::kRows},
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
  params.weight = MakeTensorMap({.data = args.weight[0].values,
                                 .rank = 3,
                                 .size = {u64(row_bytes), u64(args.n), u64(args.parts)},
                                 .stride = {u64(row_bytes), u64(args.n * row_bytes)},
                                 .box = {Tile::kWeightBytes, Tile::kOutputs, 1},
                                 .swizzle = kSwizzles[Tile::kUnits / 4]});
  params.boxes = !args.out_f32 && args.n % 8 == 0 && args.out_stride % 8 == 0 &&
                 reinterpret_cast<uintptr_t>(args.out) % 16 == 0;
  if (params.boxes) {
    params.out = MakeTensorMap({.data = args.out,
                                .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                .rank = 3,
                                .size = {u64(args.n), u64(args.parts), u64(args.rows)},
                                .stride = {u64(2 * args.n), u64(2 * args.out_stride)},
                                .box = {Tile::kGroupOutputs, 1, Tile::kRows},
                                .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
  }
  return params;
}

template <typename Tile>
void LaunchMany(const GemmArgs& args, cudaStream_t stream) {
  constexpr int64_t kGroupRows = 8;  // whose inputs the L2 cache keeps for all weights
  ManyParams params = ManyParamsOf<Tile>(args);
  const int64_t row_tiles = (args.rows + Tile::kRows - 1) / Tile::kRows;
  params.row_tiles = static_cast<int>(row_tiles);
  params.group_rows = static_cast<int>(std::min(row_tiles, kGroupRows));
  params.column_tiles = static_cast<int>((args.n + Tile::kOutputs - 1) / Tile::kOutputs);
  params.slices = NumSumSlices(args);
  const int64_t tiles = row_tiles * params.column_tiles * args.parts;
  constexpr int kSharedBytes = sizeof(ManyShared<Tile>);
  CUDA_CHECK(cudaFuncSetAttribute(ManyGemmKernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes));
  LaunchOverlapped(ManyGemmKernel<Tile>,
                   {.blocks = std::min<int64_t>(tiles, CurrentDevice().processors),
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes},
                   stream, params);
}

// x is ordered.
template <WeightFormat kFormat>
void LaunchManyRows(const GemmArgs& args, cudaStream_t stream) {
  if constexpr (IsQuantised(kFormat)) {
    const int64_t column_tiles = (args.n + 127) / 128 * args.parts;
    switch (ManyTileRows(args.rows, column_tiles, CurrentDevice().processors)) {
      case 64:
        return LaunchMany<ManyTile<kFormat, 64>>(args, stream);
      case 128:
        return LaunchMany<ManyTile<kFormat, 128>>(args, stream);
      default:
        break;
    }
  }
  LaunchMany<ManyTile<kFormat, 176>>(args, stream);
}

}  // namespace lodestone::cuda

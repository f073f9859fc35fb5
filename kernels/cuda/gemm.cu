// Products with bf16 weights on the tensor cores (gemm.h): mma.sync, so that one file serves every
// architecture.
//
// Up to 64 rows (a decode step, a few tokens per expert): NarrowTile, one block per 8 to 32 outputs,
// weights streamed once from global memory; bound by their bytes. More rows: WideTile, 128 x 128
// outputs a block, inputs through a ring of shared memory; bound by the tensor cores. Both add in
// the same order, so they give the same bits.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

struct GemmParams {
  GemmArgs args;
  int row_tiles;     // of the output, at most; the fastest index of the blocks
  int column_tiles;  // of one part
};

// One block's work.
struct TileWork {
  const uint16_t* x;       // of the part
  const uint16_t* weight;  // of the first output
  int64_t first_row;       // of the output
  int rows, columns;       // that exist
  int64_t first_column;    // of the output
};

// False if this block has nothing to do.
__device__ bool FindWork(const GemmParams& params, int tile_rows, int tile_columns, TileWork* work) {
  const GemmArgs& args = params.args;
  const int row_tile = static_cast<int>(blockIdx.x) % params.row_tiles;
  const int rest = static_cast<int>(blockIdx.x) / params.row_tiles;
  const int part = rest / params.column_tiles;
  const int64_t column = static_cast<int64_t>(rest % params.column_tiles) * tile_columns;
  int64_t expert_offset = 0;
  bool shared = false;
  if (args.tiles == nullptr) {
    work->first_row = static_cast<int64_t>(row_tile) * tile_rows;
    work->rows = static_cast<int>(min(static_cast<int64_t>(tile_rows), args.rows - work->first_row));
  } else {
    if (row_tile >= *args.num_tiles) return false;
    const ExpertTile tile = args.tiles[row_tile];
    work->first_row = tile.first;
    work->rows = tile.count;
    shared = tile.expert == args.num_experts;
    expert_offset = shared ? 0 : tile.expert * args.expert_stride;
  }
  const uint16_t* const base =
      args.grouped ? args.weight[0] + part * args.n * args.k
                   : (shared ? args.shared_weight[part] : args.weight[part] + expert_offset);
  work->x = args.x + (args.grouped ? part * args.k : 0);
  work->weight = base + column * args.k;
  work->columns = static_cast<int>(min(static_cast<int64_t>(tile_columns), args.n - column));
  work->first_column = part * args.n + column;
  return true;
}

__device__ const uint16_t* RowAddress(const GemmArgs& args, const TileWork& work, int row) {
  if (row >= work.rows) return nullptr;
  const int64_t at = work.first_row + row;
  return work.x + (args.x_rows == nullptr ? at : args.x_rows[at]) * args.x_stride;
}

__device__ void StoreOutput(const GemmArgs& args, const TileWork& work, int row, int column,
                            float value) {
  const int64_t at = (work.first_row + row) * args.out_stride + work.first_column + column;
  if (args.out_f32) {
    static_cast<float*>(args.out)[at] = value;
  } else {
    static_cast<uint16_t*>(args.out)[at] = FloatToBf16(value);
  }
}

template <bool kRound, int kRowTiles, int kColumnTiles>
__global__ void __launch_bounds__(32 * kSumSlices)
    NarrowGemmKernel(const __grid_constant__ GemmParams params) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles>;
  extern __shared__ __align__(16) uint8_t smem[];
  auto& tile = *reinterpret_cast<Tile*>(smem);
  WaitForPreviousKernel();
  TileWork work;
  if (!FindWork(params, Tile::kRows, Tile::kColumns, &work)) return;
  const auto row_of = [&](int row) { return RowAddress(params.args, work, row); };
  const int k = static_cast<int>(params.args.k);
  uint8_t* const scales = smem + sizeof(Tile);
  if constexpr (kRound) FindScales(row_of, Tile::kRows, k, scales);
  SumSlice<kRound>(row_of, work.weight, work.columns, k, scales, tile);
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

struct WideShared {
  uint4 x[WideTile::kStages][WideTile::kRows][WideTile::kChunks];
  uint4 weight[WideTile::kStages][WideTile::kColumns][WideTile::kChunks];
};

// Where chunk `chunk` of row `row` lies: two neighbouring rows, which a quarter of a warp reads four
// chunks of at a time, use different banks.
__device__ int ChunkPlace(int row, int chunk) { return chunk ^ (row % 2 * 4); }

// Rows of this thread: four, 32 apart; null beyond the last. `any` is an address for empty copies.
struct WideRows {
  const uint16_t* x[4];
  const uint16_t* weight[4];
  const uint16_t* any;
};

__device__ void LoadStage(const WideRows& rows, int first_input, int k, int stage,
                          WideShared& shared) {
  const int chunk = static_cast<int>(threadIdx.x) % WideTile::kChunks;
  const int at = first_input + 8 * chunk;
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / WideTile::kChunks + 32 * i;
    const bool in_x = at < k && rows.x[i] != nullptr;
    CopyAsync16(SharedAddress(&shared.x[stage][row][ChunkPlace(row, chunk)]),
                in_x ? rows.x[i] + at : rows.any, in_x ? 16 : 0);
    const bool in_weight = at < k && rows.weight[i] != nullptr;
    CopyAsync16(SharedAddress(&shared.weight[stage][row][ChunkPlace(row, chunk)]),
                in_weight ? rows.weight[i] + at : rows.any, in_weight ? 16 : 0);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

using WideSums = float[WideTile::kRowTiles][WideTile::kColumnTiles][4];

// `scales`: of the stage's group of inputs, `num_groups` apart from row to row; if kRound.
template <bool kRound>
__device__ void MultiplyStage(const WideShared& shared, int stage, const uint8_t* scales,
                              int num_groups, WideSums& acc) {
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
      b[j] = shared.weight[stage][column][ChunkPlace(column, chunk)];
    }
#pragma unroll
    for (int i = 0; i < WideTile::kRowTiles; ++i) {
      const int row = first_row + 16 * i;
      uint4 a = shared.x[stage][row][ChunkPlace(row, chunk)];
      uint4 a8 = shared.x[stage][row + 8][ChunkPlace(row, chunk)];
      if constexpr (kRound) {
        a = RoundWords(a, scales[row * num_groups]);
        a8 = RoundWords(a8, scales[(row + 8) * num_groups]);
      }
#pragma unroll
      for (int j = 0; j < WideTile::kColumnTiles; ++j) MultiplyTile32(acc[i][j], a, a8, b[j]);
    }
  }
}

// total += acc; acc = 0: the end of a slice.
__device__ void EndSlice(WideSums& acc, WideSums& total) {
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

__device__ void StoreSums(const GemmArgs& args, const TileWork& work, const WideSums& total) {
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

template <bool kRound>
__global__ void __launch_bounds__(WideTile::kThreads, 1)
    WideGemmKernel(const __grid_constant__ GemmParams params) {
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<WideShared*>(smem);
  const GemmArgs& args = params.args;
  WaitForPreviousKernel();
  TileWork work;
  if (!FindWork(params, WideTile::kRows, WideTile::kColumns, &work)) return;
  const int k = static_cast<int>(args.k);
  WideRows rows = {.any = work.weight};
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / WideTile::kChunks + 32 * i;
    rows.x[i] = RowAddress(args, work, row);
    rows.weight[i] =
        row < work.columns ? work.weight + static_cast<int64_t>(row) * args.k : nullptr;
  }
  uint8_t* const scales = smem + sizeof(WideShared);
  const int num_groups = NumRoundedGroups(k);
  if constexpr (kRound) {
    FindScales([&](int row) { return RowAddress(args, work, row); }, WideTile::kRows, k, scales);
  }
  const int num_stages = (k + WideTile::kInputs - 1) / WideTile::kInputs;
  const int slice_stages = SliceInputs(k) / WideTile::kInputs;
  for (int stage = 0; stage < WideTile::kStages - 1; ++stage) {
    LoadStage(rows, stage * WideTile::kInputs, k, stage, shared);
  }
  WideSums acc = {};
  WideSums total = {};
  for (int stage = 0; stage < num_stages; ++stage) {
    asm volatile("cp.async.wait_group %0;" ::"n"(WideTile::kStages - 2) : "memory");
    __syncthreads();
    const int next = stage + WideTile::kStages - 1;
    LoadStage(rows, next * WideTile::kInputs, k, next % WideTile::kStages, shared);
    MultiplyStage<kRound>(shared, stage % WideTile::kStages,
                          scales + stage * WideTile::kInputs / kRoundedGroup, num_groups, acc);
    if ((stage + 1) % slice_stages == 0 || stage + 1 == num_stages) EndSlice(acc, total);
  }
  StoreSums(args, work, total);
}

template <typename Kernel>
void LaunchTiles(Kernel kernel, const GemmArgs& args, int tile_rows, int tile_columns, int threads,
                 int shared_bytes, cudaStream_t stream) {
  const int64_t row_tiles =
      args.tiles != nullptr ? args.max_tiles : (args.rows + tile_rows - 1) / tile_rows;
  const int64_t column_tiles = (args.n + tile_columns - 1) / tile_columns;
  const GemmParams params = {.args = args,
                             .row_tiles = static_cast<int>(row_tiles),
                             .column_tiles = static_cast<int>(column_tiles)};
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(kernel, {.blocks = row_tiles * column_tiles * args.parts, .threads = threads, .shared_bytes = shared_bytes},
                   stream, params);
}

int ScaleBytes(const GemmArgs& args, int rows) {
  return args.round_fp8 ? rows * NumRoundedGroups(args.k) : 0;
}

template <bool kRound, int kRowTiles, int kColumnTiles>
void LaunchNarrow(const GemmArgs& args, cudaStream_t stream) {
  using Tile = NarrowTile<kRowTiles, kColumnTiles>;
  LaunchTiles(NarrowGemmKernel<kRound, kRowTiles, kColumnTiles>, args, Tile::kRows, Tile::kColumns,
              Tile::kThreads, static_cast<int>(sizeof(Tile)) + ScaleBytes(args, Tile::kRows),
              stream);
}

// Narrow columns where there are few outputs, so that there is a block for every processor.
template <bool kRound, int kRowTiles>
void LaunchNarrowRows(const GemmArgs& args, cudaStream_t stream) {
  const int64_t outputs = args.n * args.parts * (args.tiles != nullptr ? 4 : 1);
  if (outputs >= 4096) return LaunchNarrow<kRound, kRowTiles, 4>(args, stream);
  LaunchNarrow<kRound, kRowTiles, 1>(args, stream);
}

template <bool kRound>
void LaunchRows(const GemmArgs& args, cudaStream_t stream) {
  const int64_t rows = args.tiles != nullptr ? args.tile_rows : args.rows;
  if (rows <= 16) return LaunchNarrowRows<kRound, 1>(args, stream);
  if (rows <= 32) return LaunchNarrowRows<kRound, 2>(args, stream);
  if (rows <= 64) return LaunchNarrowRows<kRound, 4>(args, stream);
  LaunchTiles(WideGemmKernel<kRound>, args, WideTile::kRows, WideTile::kColumns,
              WideTile::kThreads,
              static_cast<int>(sizeof(WideShared)) + ScaleBytes(args, WideTile::kRows), stream);
}

}  // namespace

void LaunchGemm(const GemmArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  RequireArgument(args.k % 8 == 0 && args.x_stride % 8 == 0, "LaunchGemm",
                  "inputs are not a multiple of 8", args.k);
  if (args.round_fp8) {
    RequireArgument(!args.grouped, "LaunchGemm", "a grouped product rounds its inputs", args.parts);
    return LaunchRows<true>(args, stream);
  }
  LaunchRows<false>(args, stream);
}

}  // namespace lodestone::cuda

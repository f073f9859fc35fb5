#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/weight_words.cuh"
#include "kernels/cuda/gemm.h"

// The ring of the product tile for hundreds of rows (gemm_many.cuh), the thread that fills it, and
// which tiles a block makes.
namespace lodestone::cuda {

template <WeightFormat kWeights, int kTileRows>
struct ManyTile {
  static constexpr WeightFormat kFormat = kWeights;
  static constexpr int kRows = kTileRows;
  static constexpr int kOutputs = 128;
  static constexpr int kGroupOutputs = 64;
  static constexpr int kInputs = 64;  // of one stage
  static constexpr int kStages = !IsQuantised(kFormat) && kRows > 128 ? 4 : 5;
  static constexpr int kGroupThreads = 128;
  static constexpr int kMultiplyThreads = 2 * kGroupThreads;
  static constexpr int kMultiplyWarps = kMultiplyThreads / 32;
  static constexpr int kThreads = kMultiplyThreads + kGroupThreads;
  static constexpr int kMultiplyRegisters = 232;
  static constexpr int kCopyRegisters = 40;
  static constexpr int kWeightBytes = static_cast<int>(RowBytes<kFormat>(kInputs));  // of a row
  static constexpr int kUnits = kWeightBytes / 16;
  static constexpr uint32_t kStageBytes = kRows * 2 * kInputs + kOutputs * kWeightBytes;
  static_assert(kRows % 16 == 0);  // two 8 x 8 matrices of outputs are stored at a time
};

template <typename Tile>
struct ManyShared {
  uint16_t x[Tile::kStages][Tile::kRows][Tile::kInputs];
  uint8_t weight[Tile::kStages][Tile::kOutputs][Tile::kWeightBytes];
  uint16_t out[2][Tile::kRows][Tile::kGroupOutputs];
  uint64_t full[Tile::kStages];
  uint64_t empty[Tile::kStages];
};

struct ManyParams {
  GemmArgs args;
  CUtensorMap x = {};       // [rows, inputs of all parts]
  CUtensorMap weight = {};  // bytes [parts, n, k]
  CUtensorMap out = {};     // [rows, parts, n], if `boxes`
  bool boxes = false;       // outputs are bf16 and leave by the copy engine
  int row_tiles = 0;
  int group_rows = 0;    // row tiles that all columns are made of before the next ones
  int column_tiles = 0;  // of one part
  int slices = 0;
};

// One tile.
struct ManyWork {
  int64_t first_row;
  int rows;  // that exist
  int part;
  int column;  // of the part
};

template <typename Tile>
__device__ ManyWork ManyWorkAt(const ManyParams& params, int index) {
  const GemmArgs& args = params.args;
  const int columns = params.column_tiles * args.parts;
  const int group_tiles = params.group_rows * columns;
  const int first = index / group_tiles * params.group_rows;
  const int row_tiles = min(params.group_rows, params.row_tiles - first);
  const int row_tile = first + index % group_tiles % row_tiles;
  const int rest = index % group_tiles / row_tiles;
  const int64_t first_row = int64_t{row_tile} * Tile::kRows;
  return {.first_row = first_row,
          .rows = static_cast<int>(min(int64_t{Tile::kRows}, args.rows - first_row)),
          .part = rest / params.column_tiles,
          .column = rest % params.column_tiles * Tile::kOutputs};
}

// The copying thread, one tile.
template <typename Tile>
__device__ void CopyTile(const ManyParams& params, const ManyWork& work,
                         RingStage<Tile::kStages>& ring, ManyShared<Tile>& shared) {
  const int k = static_cast<int>(params.args.k);
  const int x_column = params.args.grouped ? work.part * k : 0;
  const int first_row = static_cast<int>(work.first_row);
  int weight_at = 0;
  for (int at = 0; at < k; at += Tile::kInputs, weight_at += Tile::kWeightBytes) {
    BarrierWait(&shared.empty[ring.index], ring.parity ^ 1);
    uint64_t* const full = &shared.full[ring.index];
    BarrierArriveExpect(full, Tile::kStageBytes);
    CopyBox3(shared.weight[ring.index], &params.weight, full, weight_at, work.column, work.part);
    CopyBox2(shared.x[ring.index], &params.x, full, x_column + at, first_row);
    ring.Advance();
  }
}

}  // namespace lodestone::cuda

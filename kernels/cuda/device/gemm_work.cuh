#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/weight_words.cuh"
#include "kernels/cuda/gemm.h"

// Which rows and outputs a thread block of a product has, and where they lie.
namespace lodestone::cuda {

struct GemmParams {
  GemmArgs args;
  int row_tiles;     // of the output, at most
  int group_rows;    // row tiles that all columns are made of before the next ones; fastest index
  int column_tiles;  // of one part
  int slices;        // NumSumSlices
};

// One block's work.
struct TileWork {
  const uint16_t* x;     // of the part
  GemmWeight weight;     // the part's matrix
  int64_t first_weight;  // its row that makes the first output
  int64_t first_row;     // of the output
  int rows, columns;     // that exist
  int64_t first_column;  // of the output
};

// False if this block has nothing to do.
__device__ inline bool FindWork(const GemmParams& params, int tile_rows, int tile_columns,
                                TileWork* work) {
  const GemmArgs& args = params.args;
  const int block = static_cast<int>(blockIdx.x);
  const int group_blocks = params.group_rows * params.column_tiles * args.parts;
  const int first_row_tile = block / group_blocks * params.group_rows;
  const int row_tiles = min(params.group_rows, params.row_tiles - first_row_tile);
  const int row_tile = first_row_tile + block % group_blocks % row_tiles;
  const int rest = block % group_blocks / row_tiles;
  const int part = rest / params.column_tiles;
  const int64_t column = static_cast<int64_t>(rest % params.column_tiles) * tile_columns;
  int64_t expert_offset = 0;
  bool shared = false;
  if (args.tiles == nullptr) {
    work->first_row = static_cast<int64_t>(row_tile) * tile_rows;
    work->rows =
        static_cast<int>(min(static_cast<int64_t>(tile_rows), args.rows - work->first_row));
  } else {
    if (row_tile >= *args.num_tiles) return false;
    const ExpertTile tile = args.tiles[row_tile];
    work->first_row = tile.first;
    work->rows = tile.count;
    shared = tile.expert == args.num_experts;
    expert_offset = shared ? 0 : tile.expert * args.expert_stride;
  }
  work->weight = shared ? args.shared_weight[part] : args.weight[args.grouped ? 0 : part];
  work->weight.values += expert_offset;
  work->weight.scales += expert_offset;
  work->first_weight = column + (args.grouped ? part * args.n : 0);
  work->x = args.x + (args.grouped ? part * args.k : 0);
  work->columns = static_cast<int>(min(static_cast<int64_t>(tile_columns), args.n - column));
  work->first_column = part * args.n + column;
  return true;
}

__device__ inline const uint16_t* RowAddress(const GemmArgs& args, const TileWork& work, int row) {
  if (row >= work.rows) return nullptr;
  const int64_t at = work.first_row + row;
  return work.x + (args.x_rows == nullptr ? at : args.x_rows[at]) * args.x_stride;
}

__device__ inline void StoreOutput(const GemmArgs& args, const TileWork& work, int row, int column,
                                   float value) {
  const int64_t at = (work.first_row + row) * args.out_stride + work.first_column + column;
  if (args.out_f32) {
    static_cast<float*>(args.out)[at] = value;
  } else {
    static_cast<uint16_t*>(args.out)[at] = FloatToBf16(value);
  }
}

template <WeightFormat kFormat>
__device__ WeightRows<kFormat> WeightRowsOf(const GemmArgs& args, const TileWork& work) {
  const int k = static_cast<int>(args.k);
  return {.values = work.weight.values + work.first_weight * RowBytes<kFormat>(k),
          .scales = work.weight.scales,
          .first = work.first_weight,
          .k = k};
}

// codes[group][output]: the scales of a block's `outputs` rows of weights, by its first kThreads
// threads; complete after their barrier.
template <int kThreads, int kOutputs, WeightFormat kFormat>
__device__ void LoadScales(const WeightRows<kFormat>& rows, int outputs, uint8_t* codes) {
  const int groups = static_cast<int>(ScaleColumns(kFormat, rows.k));
  const int output = static_cast<int>(threadIdx.x) % kOutputs;
  if (output >= outputs) return;
  const uint8_t* const scales = rows.Scales(output);
#pragma unroll 8
  for (int group = static_cast<int>(threadIdx.x) / kOutputs; group < groups;
       group += kThreads / kOutputs) {
    codes[group * kOutputs + output] = __ldg(scales + group);
  }
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_work.cuh"

// The ring of the product tile for many rows (gemm_warpgroup.cuh), and the warpgroup that fills it.
namespace lodestone::cuda {

struct WarpgroupTile {
  static constexpr int kOutputs = 128;
  static constexpr int kInputs = 64;  // of one stage
  static constexpr int kStages = 6;
  static constexpr int kGroupThreads = 128;
  static constexpr int kMultiplyThreads = 2 * kGroupThreads;
  static constexpr int kThreads = kMultiplyThreads + kGroupThreads;
  static constexpr int kMultiplyRegisters = 232;
  static constexpr int kCopyRegisters = 40;
  static constexpr int kChunks = kInputs / 8;  // of 8 inputs, in a row of a stage
};

template <WeightFormat kFormat, int kRows>
struct WarpgroupShared {
  using Tile = WarpgroupTile;
  uint16_t x[Tile::kStages][kRows][Tile::kInputs];
  uint8_t weight[Tile::kStages][Tile::kOutputs][RowBytes<kFormat>(Tile::kInputs)];
  uint64_t full[Tile::kStages];
  uint64_t empty[Tile::kStages];
};

// Where 16-byte unit `unit` of weight row `row` lies in a row of a stage: rows that are read at
// once use different banks.
template <WeightFormat kFormat>
__device__ int WeightUnitPlace(int row, int unit) {
  constexpr int kUnits = RowBytes<kFormat>(WarpgroupTile::kInputs) / 16;
  return unit ^ (row / (8 / kUnits) % kUnits);
}

// The copying warpgroup: all stages of x and of the weights. A stage is said to be full when
// kBehind more are under way.
template <WeightFormat kFormat, int kRows>
__device__ void CopyStages(const GemmArgs& args, const TileWork& work,
                           WarpgroupShared<kFormat, kRows>& shared) {
  using Tile = WarpgroupTile;
  constexpr int kUnits = RowBytes<kFormat>(Tile::kInputs) / 16;
  constexpr int kRowsAtOnce = Tile::kGroupThreads / Tile::kChunks;
  constexpr int kOutputsAtOnce = Tile::kGroupThreads / kUnits;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const int chunk = thread % Tile::kChunks;
  const int first_row = thread / Tile::kChunks;
  const uint16_t* x[kRows / kRowsAtOnce];
#pragma unroll
  for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
    x[i] = RowAddress(args, work, first_row + i * kRowsAtOnce);
    if (x[i] != nullptr) x[i] += 8 * chunk;
  }
  // The first half of the chunk, and two units further the second.
  const int unit = chunk / 4 * 4 + chunk % 4 / 2;
  const uint32_t low = (unit ^ first_row % 8) * 16 + chunk % 2 * 8;
  const uint32_t high = ((unit + 2) ^ first_row % 8) * 16 + chunk % 2 * 8;
  const int weight_unit = thread % kUnits;
  const int first_output = thread / kUnits;
  const int64_t output_bytes = RowBytes<kFormat>(args.k);
  const uint8_t* weight =
      work.weight.values + (work.first_weight + first_output) * output_bytes + weight_unit * 16;
  constexpr int kBehind = 3;
  static_assert(kBehind + 2 <= Tile::kStages);  // a stage is given back while the next is used
  RingStage<Tile::kStages> stage, copied;
  const auto fill = [&] {
    SharedProxyFence();
    BarrierArrive(&shared.full[copied.index]);
    copied.Advance();
  };
  for (int at = 0; at < args.k; at += Tile::kInputs) {
    BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
#pragma unroll
    for (int i = 0; i < Tile::kOutputs / kOutputsAtOnce; ++i) {
      const int output = first_output + i * kOutputsAtOnce;
      if (output >= work.columns) break;
      CopyAsync16(SharedAddress(&shared.weight[stage.index][output]
                                              [WeightUnitPlace<kFormat>(output, weight_unit) * 16]),
                  weight + i * kOutputsAtOnce * output_bytes, 16);
    }
    weight += RowBytes<kFormat>(Tile::kInputs);
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      if (x[i] == nullptr) break;
      const uint32_t row = SharedAddress(&shared.x[stage.index][first_row + i * kRowsAtOnce]);
      CopyAsync<8>(row + low, x[i] + at, 8);
      CopyAsync<8>(row + high, x[i] + at + 4, 8);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    stage.Advance();
    if (at >= kBehind * Tile::kInputs) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kBehind) : "memory");
      fill();
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  for (int at = max(0, static_cast<int>(args.k) - kBehind * Tile::kInputs); at < args.k;
       at += Tile::kInputs) {
    fill();
  }
}

}  // namespace lodestone::cuda

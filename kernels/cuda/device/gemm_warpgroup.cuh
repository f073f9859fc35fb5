#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_ring.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/gemm_work.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The product tile for many rows on sm_90a: 128 outputs of kRows rows a block, by wgmma. Weights
// are its A, 64 outputs a warpgroup, which a warp widens into the registers it multiplies from, so
// every weight is widened once a block; rows of x are its B, in shared memory. A third warpgroup
// copies both into a ring.
//
// wgmma gives the bits of mma.sync over the same 16 inputs in any order, so 32 inputs are two
// products as in MultiplyTile32: the first four of every eight, then the other four. In shared
// memory the former lie before the latter.
namespace lodestone::cuda {

// The bf16 outputs of a block on their way out, where the ring was.
template <int kRows>
struct WarpgroupOutputs {
  static constexpr int kPadding = 8;  // so that the rows that are written at once use other banks
  uint16_t row[kRows][WarpgroupTile::kOutputs + kPadding];
};

// A block of 32 weights of this lane's output as they are stored: of the block's four chunks of 8
// inputs those two, lane % 4 / 2 and the second next, of which the lane has words lane % 2 and lane
// % 2 + 2 (of two inputs each), because wgmma's A has them so.
template <WeightFormat kFormat>
struct StoredBlock {
  WeightWordsOf<kFormat> low, high;
};
template <>
struct StoredBlock<WeightFormat::kBf16> {
  const uint8_t* row;  // where the words are: they are loaded where they are multiplied
  int swizzle, block;
};

// `row` is the output's row in a stage, `swizzle` what WeightUnitPlace does to it.
template <WeightFormat kFormat>
__device__ StoredBlock<kFormat> LoadBlock(const uint8_t* row, int swizzle, int block) {
  const int chunk = static_cast<int>(threadIdx.x) % 4 / 2;
  if constexpr (kFormat == WeightFormat::kBf16) {
    return {row, swizzle, block};
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    const auto codes = [&](int unit) {
      return *reinterpret_cast<const uint2*>(row + ((2 * block + unit) ^ swizzle) * 16 + 8 * chunk);
    };
    return {codes(0), codes(1)};
  } else {
    const auto codes = [&](int of) {
      return *reinterpret_cast<const uint32_t*>(row + (block ^ swizzle) * 16 + 4 * of);
    };
    return {codes(chunk), codes(chunk + 2)};
  }
}

// Words 0 and 1 are for the first product of a block, 2 and 3 for the second.
template <WeightFormat kFormat>
__device__ uint4 WidenBlock(const StoredBlock<kFormat>& stored, uint32_t scale) {
  const bool odd = threadIdx.x % 2 != 0;
  if constexpr (kFormat == WeightFormat::kBf16) {
    const int chunk = static_cast<int>(threadIdx.x) % 4 / 2;
    const auto word = [&](int of, int byte) {
      const int unit = (4 * stored.block + of) ^ stored.swizzle;
      return *reinterpret_cast<const uint32_t*>(stored.row + unit * 16 + (odd ? 4 : 0) + byte);
    };
    return {word(chunk, 0), word(chunk + 2, 0), word(chunk, 8), word(chunk + 2, 8)};
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    const uint32_t pick = odd ? 0x7632 : 0x5410;
    return WidenWords<kFormat>({PickBytes(stored.low.x, stored.high.x, pick),
                                PickBytes(stored.low.y, stored.high.y, pick)},
                               scale);
  } else {
    return WidenE2m1(PickBytes(stored.low, stored.high, odd ? 0x7351 : 0x6240),
                     E8m0ToBf16x2(scale));
  }
}

// The multiplying warpgroups: `total` of 64 outputs (this group's) by kRows rows, as wgmma gives
// it.
template <WeightFormat kFormat, int kRows>
__device__ void MultiplyStages(const GemmParams& params, const uint8_t* scales,
                               WarpgroupShared<kFormat, kRows>& shared, float (&total)[kRows / 2]) {
  using Tile = WarpgroupTile;
  constexpr int kUnits = RowBytes<kFormat>(Tile::kInputs) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;  // and output + 8
  const int swizzle = output / (8 / kUnits) % kUnits;                     // of both
  const int num_stages = static_cast<int>(params.args.k) / Tile::kInputs;
  const int slice_stages = SliceInputs(params.args.k, params.slices) / Tile::kInputs;
  float acc[kRows / 2] = {};
  RingStage<Tile::kStages> ring;
  int previous = 0;
  const auto release = [&] { BarrierArrive(&shared.empty[previous]); };
  for (int first = 0; first < num_stages; first += slice_stages) {
    const int end = min(first + slice_stages, num_stages);
#pragma unroll 1
    for (int stage = first; stage < end; ++stage) {
      BarrierWait(&shared.full[ring.index], ring.parity);
      const uint64_t x = RowTileDescriptor(SharedAddress(shared.x[ring.index]));
      StoredBlock<kFormat> stored[2][2];
      uint32_t scale[2][2] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = output + i % 2 * 8;
        stored[i / 2][i % 2] = LoadBlock<kFormat>(shared.weight[ring.index][row], swizzle, i / 2);
        if constexpr (IsQuantised(kFormat)) {
          const int group =
              (stage * Tile::kInputs + i / 2 * 32) / static_cast<int>(ScaledInputs(kFormat));
          scale[i / 2][i % 2] = scales[group * Tile::kOutputs + row];
        }
      }
      uint4 a[2][2];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        WgmmaWait<1>();  // the product before the last has read its registers
        if (block == 1 && stage > first) release();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[block][i] = WidenBlock<kFormat>(stored[block][i], scale[block][i]);
        }
        const uint4& low = a[block][0];
        const uint4& high = a[block][1];
        const uint32_t first_words[4] = {low.x, high.x, low.y, high.y};
        const uint32_t other_words[4] = {low.z, high.z, low.w, high.w};
        WgmmaFence();
        WgmmaRegisterA(acc, first_words, AdvanceTile(x, 64 * block), stage > first || block > 0);
        WgmmaRegisterA(acc, other_words, AdvanceTile(x, 64 * block + 32), true);
        WgmmaCommit();
      }
      previous = ring.index;
      ring.Advance();
    }
    WgmmaWait<0>();
    HoldRegisters(acc);
    release();
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i] = first == 0 ? acc[i] : total[i] + acc[i];
  }
}

// The outputs of both multiplying warpgroups, by way of shared memory where they are bf16.
template <int kRows>
__device__ void StoreOutputs(const GemmArgs& args, const TileWork& work,
                             const float (&total)[kRows / 2], WarpgroupOutputs<kRows>& staged) {
  using Tile = WarpgroupTile;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const auto for_each = [&](const auto& store) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      store(i / 4 * 8 + 2 * (lane % 4) + i % 2, output + i % 4 / 2 * 8, total[i]);
    }
  };
  constexpr int kVector = 8;
  const bool vectors = !args.out_f32 && work.columns == Tile::kOutputs &&
                       (args.out_stride | work.first_column) % kVector == 0 &&
                       reinterpret_cast<uintptr_t>(args.out) % sizeof(uint4) == 0;
  if (!vectors) {
    for_each([&](int row, int column, float value) {
      if (row < work.rows && column < work.columns) StoreOutput(args, work, row, column, value);
    });
    return;
  }
  NamedBarrierSync(1, Tile::kMultiplyThreads);  // the ring is not needed any more
  for_each([&](int row, int column, float value) { staged.row[row][column] = FloatToBf16(value); });
  NamedBarrierSync(1, Tile::kMultiplyThreads);
  constexpr int kUnits = Tile::kOutputs / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < work.rows * kUnits; i += Tile::kMultiplyThreads) {
    const int64_t at =
        (work.first_row + i / kUnits) * args.out_stride + work.first_column + i % kUnits * kVector;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(args.out) + at) =
        *reinterpret_cast<const uint4*>(&staged.row[i / kUnits][i % kUnits * kVector]);
  }
}

template <WeightFormat kFormat, int kRows>
__global__ void __launch_bounds__(WarpgroupTile::kThreads, 1)
    WarpgroupGemmKernel(const __grid_constant__ GemmParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = WarpgroupTile;
  extern __shared__ __align__(1024) uint8_t ring_memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<kFormat, kRows>*>(ring_memory);
  static_assert(sizeof(WarpgroupOutputs<kRows>) <= sizeof(shared.x));
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      BarrierInit(&shared.full[i], Tile::kGroupThreads);
      BarrierInit(&shared.empty[i], Tile::kMultiplyThreads);
    }
    BarrierInitFence();
  }
  __syncthreads();
  WaitForPreviousKernel();
  TileWork work;
  if (!FindWork(params, kRows, Tile::kOutputs, &work)) return;
  if (threadIdx.x >= Tile::kMultiplyThreads) {
    ShrinkRegisters<Tile::kCopyRegisters>();
    return CopyStages(params.args, work, shared);
  }
  GrowRegisters<Tile::kMultiplyRegisters>();
  uint8_t* const weight_scales = ring_memory + sizeof(shared);
  if constexpr (IsQuantised(kFormat)) {
    LoadScales<Tile::kMultiplyThreads, Tile::kOutputs>(WeightRowsOf<kFormat>(params.args, work),
                                                       work.columns, weight_scales);
    NamedBarrierSync(1, Tile::kMultiplyThreads);
  }
  float total[kRows / 2];
  MultiplyStages(params, weight_scales, shared, total);
  StoreOutputs<kRows>(params.args, work, total,
                      *reinterpret_cast<WarpgroupOutputs<kRows>*>(ring_memory));
#endif
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_many_ring.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/gemm_work.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The product tile for hundreds of rows on sm_90a: 128 outputs of kRows rows, by wgmma. Two
// warpgroups multiply, 64 outputs each: weights are their A, which a warp widens into the registers
// that it multiplies from; rows of x are their B, in shared memory. One thread of a third warpgroup
// has the copy engine fill a ring with both. Blocks stay on their processors and take one tile
// after the other. While one warpgroup adds a slice's sums to its total, the other multiplies.
// Bound by the tensor cores: 4,096 x 4,096 at 4,096 rows 0.75 (bf16), 0.66 (FP8) and 0.65 (FP4) of
// the rate of a large product, the time to prepare the inputs included; without the copies a tile
// takes 0.8 of its time, without the additions 0.9.
//
// A product takes 16 inputs: of 32, the first four of every eight, then the other four, as
// MultiplyTile32 does. A lane has those of one eight, so the 16 words of 32 inputs of x lie
// transposed, as LaunchInputs leaves them (GemmArgs.ordered).
namespace lodestone::cuda {

__device__ inline uint4 Pick(bool first, const uint4& a, const uint4& b) {
  return {first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w};
}
__device__ inline uint2 Pick(bool first, const uint2& a, const uint2& b) {
  return {first ? a.x : b.x, first ? a.y : b.y};
}
__device__ inline uint32_t Pick(bool first, uint32_t a, uint32_t b) { return first ? a : b; }

// The eight weights of this lane's chunk in each of a stage's two blocks of 32 inputs, as they are
// stored.
template <typename Tile>
struct ManyChunks {
  static constexpr WeightFormat kFormat = Tile::kFormat;
  using Words = WeightWordsOf<kFormat>;
  // bf16 words are loaded where they are multiplied, into the very registers; loaded ahead they
  // came to registers that products under way still read.
  static constexpr bool kAhead = IsQuantised(kFormat);
  Words block[2];

  // Of block `of`, this lane's chunk of a row.
  __device__ static Words Chunk(const uint8_t* row, int swizzle, int of) {
    constexpr int kChunkBytes = sizeof(Words);
    const int byte = static_cast<int>(threadIdx.x) % 4 * kChunkBytes;
    const int unit = of * (Tile::kUnits / 2) + byte / 16;
    return *reinterpret_cast<const Words*>(row + (unit ^ swizzle) * 16 + byte % 16);
  }
  // Where the banks ask for it, every other row reads its second block first.
  __device__ void Load(const uint8_t* row, int swizzle) {
    const bool swap = Tile::kUnits > 2 && swizzle % 2 != 0;
    const Words one = Chunk(row, swizzle, swap);
    const Words other = Chunk(row, swizzle, !swap);
    block[0] = Pick(swap, other, one);
    block[1] = Pick(swap, one, other);
  }
  __device__ uint4 Widen(int of, uint32_t scale) const {
    if constexpr (kFormat == WeightFormat::kFp4) {
      return WidenE2m1(block[of], E8m0ToBf16x2(scale));
    } else {
      return WidenWords<kFormat>(block[of], scale);
    }
  }
};

// Where a multiplying thread finds the scales of its two outputs.
template <typename Tile>
struct ManyScales {
  static constexpr WeightFormat kFormat = Tile::kFormat;
  const uint8_t* row[2] = {};

  __device__ ManyScales(const ManyParams& params, const ManyWork& work, int output) {
    if constexpr (!IsQuantised(kFormat)) return;
    const GemmArgs& args = params.args;
    const int64_t first = work.part * args.n + work.column + output;
    for (int i = 0; i < 2; ++i) {
      const int64_t of = min(first + 8 * i, args.parts * args.n - 1);
      row[i] = args.weight[0].scales + of / ScaledOutputs(kFormat) * ScaleColumns(kFormat, args.k);
    }
  }
  __device__ uint32_t At(int of, int input) const {
    if constexpr (!IsQuantised(kFormat)) return 0;
    return __ldg(row[of] + input / static_cast<int>(ScaledInputs(kFormat)));
  }
};

// The multiplying warpgroups, one tile: `total` of 64 outputs (this group's) by kRows rows, as
// wgmma gives it.
template <typename Tile>
__device__ void MultiplyTileStages(const ManyParams& params, const ManyWork& work,
                                   RingStage<Tile::kStages>& ring, ManyShared<Tile>& shared,
                                   float (&total)[Tile::kRows / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;  // and output + 8
  const int swizzle = output / (8 / Tile::kUnits) % Tile::kUnits;         // of both
  const int num_stages = static_cast<int>(params.args.k) / Tile::kInputs;
  const int slice_stages = SliceInputs(params.args.k, params.slices) / Tile::kInputs;
  const ManyScales<Tile> scales(params, work, output);
  float acc[Tile::kRows / 2] = {};
  int previous = 0;
  const auto release = [&] {
    if (lane == 0) BarrierArrive(&shared.empty[previous]);
  };
  for (int first = 0; first < num_stages; first += slice_stages) {
    const int end = min(first + slice_stages, num_stages);
#pragma unroll 1
    for (int stage = first; stage < end; ++stage) {
      uint32_t scale[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scale[i / 2][i % 2] = scales.At(i % 2, stage * Tile::kInputs + i / 2 * 32);
      }
      BarrierWait(&shared.full[ring.index], ring.parity);
      const uint64_t x = RowTileDescriptor(SharedAddress(shared.x[ring.index]));
      ManyChunks<Tile> chunks[2];
      const uint8_t* const rows[2] = {shared.weight[ring.index][output],
                                      shared.weight[ring.index][output + 8]};
      if constexpr (ManyChunks<Tile>::kAhead) {
        chunks[0].Load(rows[0], swizzle);
        chunks[1].Load(rows[1], swizzle);
      }
      uint4 a[2][2];
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        WgmmaWait<1>();  // the product before the last has read its registers
        if (block == 1 && stage > first) release();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (!ManyChunks<Tile>::kAhead) {
            chunks[i].block[block] = chunks[i].Chunk(rows[i], swizzle, block);
          }
          SetRegisters(a[block][i], chunks[i].Widen(block, scale[block][i]));
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
    for (int i = 0; i < Tile::kRows / 2; ++i) total[i] = first == 0 ? acc[i] : total[i] + acc[i];
  }
}

// This warpgroup's outputs to shared.out, by rows with the 128-byte swizzle.
template <typename Tile>
__device__ void StageOutputs(const float (&total)[Tile::kRows / 2],
                             uint16_t (&out)[Tile::kRows][Tile::kGroupOutputs]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) % Tile::kGroupThreads / 32;
#pragma unroll
  for (int i = 0; i < Tile::kRows / 8; i += 2) {
    const int row = 8 * (i + lane / 16) + lane % 8;
    const int unit = 2 * warp + lane / 8 % 2;
    const float* const sums = total + 4 * i;
    StoreMatricesTransposed(SharedAddress(out[row]) + (unit ^ row % 8) * 16,
                            PackBf16(sums[0], sums[1]), PackBf16(sums[2], sums[3]),
                            PackBf16(sums[4], sums[5]), PackBf16(sums[6], sums[7]));
  }
}

// The outputs of a warpgroup: by way of shared memory, or one by one.
template <typename Tile>
__device__ void StoreTile(const ManyParams& params, const ManyWork& work,
                          const float (&total)[Tile::kRows / 2], ManyShared<Tile>& shared) {
  const GemmArgs& args = params.args;
  const int thread = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const int group = static_cast<int>(threadIdx.x) / Tile::kGroupThreads;
  const int column = work.column + group * Tile::kGroupOutputs;
  const int64_t out_column = work.part * args.n + column;
  auto& out = shared.out[group];
  if (!params.boxes) {
    const TileWork tile = {.first_row = work.first_row, .first_column = out_column};
#pragma unroll
    for (int i = 0; i < Tile::kRows / 2; ++i) {
      const int row = i / 4 * 8 + 2 * (thread % 4) + i % 2;
      const int output = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
      if (row < work.rows && column + output < args.n) {
        StoreOutput(args, tile, row, output, total[i]);
      }
    }
    return;
  }
  if (thread == 0) StoresWaitRead();
  NamedBarrierSync(1 + group, Tile::kGroupThreads);
  StageOutputs<Tile>(total, out);
  SharedProxyFence();
  NamedBarrierSync(1 + group, Tile::kGroupThreads);
  if (thread != 0) return;
  StoreBox3(&params.out, out, column, work.part, static_cast<int>(work.first_row));
  StoresCommit();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    ManyGemmKernel(const __grid_constant__ ManyParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t ring_memory[];
  auto& shared = *reinterpret_cast<ManyShared<Tile>*>(ring_memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      BarrierInit(&shared.full[i], 1);
      BarrierInit(&shared.empty[i], Tile::kMultiplyWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
  WaitForPreviousKernel();
  AllowNextKernel();
  const int tiles = params.row_tiles * params.column_tiles * params.args.parts;
  RingStage<Tile::kStages> ring;
  const auto for_each_tile = [&](const auto& make) {
    for (int i = static_cast<int>(blockIdx.x); i < tiles; i += static_cast<int>(gridDim.x)) {
      make(ManyWorkAt<Tile>(params, i));
    }
  };
  if (threadIdx.x >= Tile::kMultiplyThreads) {
    ShrinkRegisters<Tile::kCopyRegisters>();
    if (threadIdx.x == Tile::kMultiplyThreads) {
      for_each_tile([&](const ManyWork& work) { CopyTile(params, work, ring, shared); });
    }
  } else {
    GrowRegisters<Tile::kMultiplyRegisters>();
    for_each_tile([&](const ManyWork& work) {
      float total[Tile::kRows / 2];
      MultiplyTileStages(params, work, ring, shared, total);
      StoreTile(params, work, total, shared);
    });
    if (threadIdx.x % Tile::kGroupThreads == 0) StoresWait();
  }
#endif
}

}  // namespace lodestone::cuda

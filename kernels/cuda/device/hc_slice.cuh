#pragma once

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/hyper_connection.h"
#include "kernels/cuda/tensor_map.h"

// The sums of a boundary over one slice of the channels: fn z and z^2. A team of HcTile::kWarps
// warps does it for some tokens.
namespace lodestone::cuda {

// The channels of one slice.
struct HcSlice {
  int first, count;
};

// kChannels: HcArgs::channels where it is known and divides the hidden size; or 0.
template <int kChannels = 0>
__device__ HcSlice FindSlice(const HcArgs& args, int number) {
  if constexpr (kChannels > 0) return {number * kChannels, kChannels};
  const int first = number * args.channels;
  return {first, max(0, min(args.channels, args.hidden - first))};
}

// One slice of fn and the streams of some tokens: fp32 [kMixes][kStreams][channels] and then bf16
// [tokens][kStreams][channels], behind the other shared memory.
struct HcSliceMemory {
  float* fn;
  uint16_t* z;
  int channels;
  __device__ float* Fn(int row, int stream) const {
    return fn + (row * HcTile::kStreams + stream) * channels;
  }
  __device__ uint16_t* Z(int token, int stream) const {
    return z + (token * HcTile::kStreams + stream) * channels;
  }
  __device__ static HcSliceMemory At(uint8_t* memory, int channels) {
    auto* const fn = reinterpret_cast<float*>(memory);
    constexpr int kRowsOfFn = HcTile::kMixes * HcTile::kStreams;
    return {fn, reinterpret_cast<uint16_t*>(fn + kRowsOfFn * channels), channels};
  }
  static int64_t Bytes(int64_t channels, int tokens) {
    return (2 * HcTile::kMixes + tokens) * HcTile::kStreams * channels * 2;
  }
};

// Starts the copy of the slice of fn, a row of a stream at a time. By all warps of the block, of
// which each takes about 60 cycles a copy; the barrier is initialised.
__device__ inline void StartCopyOfFn(const HcArgs& args, const HcSlice& slice,
                                     const HcSliceMemory& memory, uint64_t* barrier) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kCopies = HcTile::kMixes * kStreams;
  const int thread = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<uint32_t>(slice.count) * 4;
  if (thread == 0) BarrierArriveExpect(barrier, kCopies * bytes);
  if (bytes == 0) return;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  for (int i = thread % 32 * num_warps + thread / 32; i < kCopies;
       i += static_cast<int>(blockDim.x)) {
    const float* const from =
        args.fn + static_cast<int64_t>(i) * args.hidden + slice.first;  // row i / 4, stream i % 4
    CopyBulk(memory.Fn(i / kStreams, i % kStreams), from, bytes, barrier);
  }
}

// Whether every slice has all of its channels.
__host__ __device__ constexpr bool HasEvenSlices(const HcArgs& args) {
  return args.hidden == args.channels * HcTile::kSlices;
}

// fn for StartBoxesOfFn: boxes of HcTile::kBoxRows rows of a stream, of one slice, which is two
// halves since a box is at most 256 long. None unless slices are even.
inline CUtensorMap MakeFnMap(const HcArgs& args) {
  if (!HasEvenSlices(args)) return {};
  constexpr uint32_t kHalves = 2;
  constexpr uint64_t kRowsOfFn = HcTile::kMixes * HcTile::kStreams;
  const auto half = static_cast<uint32_t>(args.channels) / kHalves;
  return MakeTensorMap({.data = args.fn,
                        .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                        .rank = 3,
                        .size = {half, kHalves * HcTile::kSlices, kRowsOfFn},
                        .stride = {uint64_t{4} * half, uint64_t{4} * args.hidden},
                        .box = {half, kHalves, HcTile::kBoxRows}});
}

// StartCopyOfFn of slice `number` where slices are even: a box a warp, by the warps of a team,
// which do not wait for the copy engine. memory.fn is a multiple of 128 bytes.
__device__ inline void StartBoxesOfFn(const CUtensorMap& map, int number,
                                      const HcSliceMemory& memory, uint64_t* barrier) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kRowsOfFn = HcTile::kMixes * kStreams;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) BarrierArriveExpect(barrier, kRowsOfFn * memory.channels * 4);
  if (thread % 32 != 0) return;
  const int row = thread / 32 * HcTile::kBoxRows;
  CopyBox3(memory.Fn(row / kStreams, row % kStreams), &map, barrier, 0, 2 * number, row);
}

// Sums of a slice, by pair of streams; those of a pair in the order of HcTile::PlaceOf.
template <int kTokens>
struct HcStreamSums {
  static constexpr int kVectors = HcTile::kPaddedSums / 4;
  float4 value[HcTile::kStreamPairs][kTokens][kVectors];

  __device__ float* Of(int pair, int token) { return reinterpret_cast<float*>(value[pair][token]); }
  // Four sums over all streams.
  __device__ float4 Add(int token, int vector) const {
    const float4& first = value[0][token][vector];
    const float4& second = value[1][token][vector];
    return {first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w};
  }
};

__device__ inline float Dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// fn z and z^2 of the slice. A warp of the team has kRows rows of fn and two of the streams; lanes
// have four channels at a time. kChannels as in FindSlice: known, the steps are one run of
// instructions, in which loads come early.
template <int kTokens, int kChannels = 0>
__device__ void MultiplySlice(const HcSliceMemory& memory, int count, HcStreamSums<kTokens>& sums) {
  constexpr int kRows = HcTile::kRows;
  constexpr int kRowGroups = HcTile::kRowGroups;
  constexpr int kSquares = (kTokens + kRowGroups - 1) / kRowGroups;
  constexpr int kProducts = kTokens * kRows;
  constexpr int kUnroll = kChannels > 0 ? 8 : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp % kRowGroups;
  const int pair = warp / kRowGroups;
  float acc[kProducts + kSquares] = {};
  float squares[kSquares] = {};  // of tokens `group`, `group` + kRowGroups, ...
#pragma unroll kUnroll
  for (int stream = 2 * pair; stream < 2 * pair + 2; ++stream) {
#pragma unroll kUnroll
    for (int first = 0; first < count; first += 128) {
      const int channel = first + 4 * lane;
      if (channel >= count) break;
      float4 z[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint2 packed = *reinterpret_cast<const uint2*>(memory.Z(t, stream) + channel);
        UnpackBf16(packed.x, z[t].x, z[t].y);
        UnpackBf16(packed.y, z[t].z, z[t].w);
        if (t % kRowGroups == group) {
          squares[t / kRowGroups] = Dot(z[t], z[t], squares[t / kRowGroups]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 factor =
            *reinterpret_cast<const float4*>(memory.Fn(group * kRows + r, stream) + channel);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          acc[t * kRows + r] = Dot(factor, z[t], acc[t * kRows + r]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSquares; ++i) acc[kProducts + i] = squares[i];
  int index = 0;
  int left = kProducts + kSquares;
  const float sum = WarpSums<kProducts + kSquares>(acc, index, left);
  const bool is_product = index < kProducts;
  const int token = is_product ? index / kRows : group + (index - kProducts) * kRowGroups;
  const int place = is_product ? HcTile::PlaceOf(group * kRows + index % kRows) : HcTile::kSquares;
  if (left > 0 && token < kTokens) sums.Of(pair, token)[place] = sum;
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/row_ops.cuh"

// Steps of the mixing of residual streams that its kernels share (HcPreParams, HcPostParams,
// HcHeadParams), so that a token's sums run in the same order in each of them.
namespace lodestone::cuda {

struct HcTile {
  static constexpr int kStreams = 4;                        // M
  static constexpr int kMixes = kStreams * (kStreams + 2);  // rows of fn: pre, post, comb
  static constexpr int kSums = kMixes + 1;                  // and the sum of squares
  static constexpr int kSquares = kStreams;                 // its place: behind pre
  static constexpr int kPreSums = 8;                        // pre and squares, in rows of 16 bytes
  static constexpr int kPaddedSums = 28;                    // the same of all
  static constexpr int kSlices = 16;                        // of the channels: blocks of a cluster
  static constexpr int kFlashChannels = 4096 / kSlices;     // of a width that has its own code
  static constexpr int kChunk = 8;  // channels that a lane collapses at once
  static constexpr int kMaxHidden = 8192;
  static constexpr int kMaxChunks = kMaxHidden / kSlices / kChunk / 32;  // of a lane
  static constexpr int kRows = 6;  // of fn, summed by one warp
  static constexpr int kRowGroups = kMixes / kRows;
  static constexpr int kStreamPairs = kStreams / 2;         // a warp sums two streams
  static constexpr int kWarps = kRowGroups * kStreamPairs;  // of a team, which sums some tokens
  static constexpr int kTeamThreads = kWarps * 32;
  static constexpr int kBoxRows = kMixes * kStreams / kWarps;  // rows of a stream that a warp copies
  static_assert(kRows * kRowGroups == kMixes && kPreSums > kSquares && kPaddedSums >= kSums);
  // The place of the sum of a row of fn.
  static __host__ __device__ constexpr int PlaceOf(int row) { return row + (row >= kSquares); }
};

// Channels of every slice but the last ones, which may have fewer or none.
__host__ __device__ constexpr int HcSliceChannels(int hidden) {
  return (hidden + HcTile::kSlices * HcTile::kChunk - 1) / (HcTile::kSlices * HcTile::kChunk) *
         HcTile::kChunk;
}

// rcp.approx (9.7.3.13): within 1 ulp; results below 2^-126 are 0.
__device__ inline float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ inline float Sigmoid(float x) { return Reciprocal(1.0f + expf(-x)); }

// The sums of kCount values over the lanes of a warp, each as WarpSum adds, for about one shuffle a
// value: lanes with bit kOffset keep the upper half of the values, the others the lower one, and so
// on. Returns the sum of value `index`; `left` below 1: of none. At first index 0, left kCount.
template <int kCount, int kOffset = 16>
__device__ float WarpSums(float* values, int& index, int& left) {
  if constexpr (kOffset == 0) {
    static_assert(kCount == 1, "at most 32 values");
    return values[0];
  } else if constexpr (kCount == 1) {
    values[0] += __shfl_xor_sync(~0u, values[0], kOffset);
    return WarpSums<1, kOffset / 2>(values, index, left);
  } else {
    constexpr int kHalf = (kCount + 1) / 2;
    const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float high = kHalf + i < kCount ? values[kHalf + i] : 0.0f;
      const float kept = upper ? high : values[i];
      values[i] = kept + __shfl_xor_sync(~0u, upper ? values[i] : high, kOffset);
    }
    index += upper ? kHalf : 0;
    left = upper ? left - kHalf : min(left, kHalf);
    return WarpSums<kHalf, kOffset / 2>(values, index, left);
  }
}

}  // namespace lodestone::cuda

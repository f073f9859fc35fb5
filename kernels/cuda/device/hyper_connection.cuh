#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/row_ops.cuh"

// Steps of the mixing of residual streams that its kernels share (HcPreParams, HcPostParams,
// HcHeadParams), so that a token's sums run in the same order in each of them.
namespace lodestone::cuda {

struct HcTile {
  static constexpr int kStreams = 4;                          // M
  static constexpr int kMixes = kStreams * (kStreams + 2);    // rows of fn
  static constexpr int kSums = kMixes + 1;                    // and the sum of squares
  static constexpr int kPaddedSums = 28;                      // in rows of 16 bytes
  static constexpr int kSlices = 16;                          // of the channels: blocks of a cluster
  static constexpr int kChunk = 8;                            // channels that a lane collapses at once
  static constexpr int kMaxHidden = 8192;
  static constexpr int kMaxChunks = kMaxHidden / kSlices / kChunk / 32;  // of a lane
  static constexpr int kRows = 6;                             // of fn, summed by one warp
  static constexpr int kRowGroups = kMixes / kRows;
  static constexpr int kWarps = kRowGroups * kStreams;        // each has rows of one stream
  static_assert(kRows * kRowGroups == kMixes);
};

// Channels of every slice but the last ones, which may have fewer or none.
__host__ __device__ constexpr int HcSliceChannels(int hidden) {
  return (hidden + HcTile::kSlices * HcTile::kChunk - 1) / (HcTile::kSlices * HcTile::kChunk) *
         HcTile::kChunk;
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline void UnpackBf16(uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}

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

// comb nearly doubly stochastic (spec 6.1), by a warp: lane i < 16 has element i of the scaled mixes
// and gets element i of comb. The last pass normalises columns.
//
// Passes scale rows and columns of one matrix a, so only the factors change: comb[j][k] = a[j][k] *
// row[j] * column[k], and a pass over rows is 1 / row[j] = sum_k a[j][k] column[k] + eps / (the old
// row[j]). Every lane does all of it: a pass is 16 products and 4 reciprocals, approximate ones (1 ulp).
__device__ inline float Sinkhorn(float mix, float eps, int iters) {
  constexpr int kStreams = HcTile::kStreams;
  const auto over_row = [](float value, const auto& combine) {
    value = combine(value, __shfl_xor_sync(~0u, value, 1));
    return combine(value, __shfl_xor_sync(~0u, value, 2));
  };
  // Row softmax, eps added after the division.
  const float largest = over_row(mix, [](float x, float y) { return fmaxf(x, y); });
  const float weight = expf(mix - largest);
  const float own = weight / over_row(weight, [](float x, float y) { return x + y; }) + eps;
  float a[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    a[i / kStreams][i % kStreams] = __shfl_sync(~0u, own, i);
  }
  const auto reciprocal = [](float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  };
  float row[kStreams], column[kStreams], row_inverse[kStreams], column_inverse[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    row[i] = row_inverse[i] = column_inverse[i] = 1.0f;
  }
  const auto divide_columns = [&] {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      column_inverse[k] = fmaf(a[1][k], row[1], fmaf(a[0][k], row[0], eps * column_inverse[k])) +
                          fmaf(a[3][k], row[3], a[2][k] * row[2]);
      column[k] = reciprocal(column_inverse[k]);
    }
  };
  divide_columns();
#pragma unroll 1
  for (int iter = 1; iter < iters; ++iter) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      row_inverse[j] =
          fmaf(a[j][1], column[1], fmaf(a[j][0], column[0], eps * row_inverse[j])) +
          fmaf(a[j][3], column[3], a[j][2] * column[2]);
      row[j] = reciprocal(row_inverse[j]);
    }
    divide_columns();
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float factor = 0;
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    if (lane == i) factor = row[i / kStreams] * column[i % kStreams];
  }
  return own * factor;
}

}  // namespace lodestone::cuda

#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_bins.cuh"
#include "kernels/cuda/device/top_k_kth.cuh"

// The bound of a row of kernels/cuda/top_k.cu that one block holds, from a sample of its scores.
namespace lodestone::cuda::top_k {

// Signed integers in the order of numbers.
__device__ inline int OrderOf(float number) {
  const int bits = __float_as_int(number);
  return bits ^ (bits >> 31 & INT32_MAX);
}
__device__ inline float OfOrder(int order) {
  return __int_as_float(order ^ (order >> 31 & INT32_MAX));
}

// Float4 of a row, each taken by its largest score, counted in bins. By a whole block.
struct HeldSample {
  static constexpr int kSlots = 2;  // float4 of a thread
  ScoreBins bins;
  float high;  // see Range
  float most;

  struct Range {
    float low;   // nearly all are above it
    float high;  // without outliers, which make bins wide
    float most;
  };
  __device__ static Range RangeOf(const float (&maxima)[kSlots], TopKShared& shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int low = __reduce_min_sync(~0u, OrderOf(fminf(fminf(maxima[0], maxima[1]), kInfinity)));
    int high = __reduce_max_sync(~0u, OrderOf(fmaxf(fmaxf(maxima[0], maxima[1]), -kInfinity)));
    if (lane == 0) {
      shared.warp_ranges[static_cast<int>(threadIdx.x) / 32] =
          uint2{static_cast<uint32_t>(low), static_cast<uint32_t>(high)};
    }
    __syncthreads();
    const uint2 range = shared.warp_ranges[lane % Tile::kWarps];
    low = static_cast<int>(range.x);
    high = static_cast<int>(range.y);
    const bool none = low > high;  // no numbers
    const float most = OfOrder(__reduce_max_sync(~0u, high));
    // The highest of the warps' lowest and the lowest of their highest; of a sorted row they are
    // the wrong way round.
    const float lower = OfOrder(__reduce_max_sync(~0u, none ? high : low));
    const float upper = OfOrder(__reduce_min_sync(~0u, none ? low : high));
    if (lower < upper) return {lower, fminf(most, upper + (upper - lower)), most};
    return {OfOrder(__reduce_min_sync(~0u, low)), most, most};
  }
  __device__ static HeldSample Count(const float4 (&sample)[kSlots], TopKShared& shared) {
    const float maxima[kSlots] = {MaxOf(sample[0]), MaxOf(sample[1])};
    const Range range = RangeOf(maxima, shared);
    const ScoreBins bins{range.low, BinScale(range.high - range.low)};
#pragma unroll
    for (float score : maxima) {
      AddSharedIf(score == score, SharedAddress(&shared.sample_bins[bins.Of(score)]), 1);
    }
    __syncthreads();
    return {bins, range.high, range.most};
  }

  // What `share` of the float4 reach; -inf if none is known. REQUIRES: bounds[0] is -inf.
  __device__ Bound FindBound(int share, TopKShared& shared) const {
    if (static_cast<int>(threadIdx.x) / 32 == 0) {
      const OwnBin own = FindOwnBin(static_cast<uint32_t>(share), shared.sample_bins);
      // The lowest bin holds also what is below the range.
      if (own.holds && own.bin.number > 0) shared.bounds[0] = bins.LowerEdge(own.bin.number);
    }
    __syncthreads();
    const float bound = shared.bounds[0];
    const bool near = most - bound <= 16 * (high - bound);
    return {bound, bound, BinScale((near ? most : high) - bound)};
  }
};

}  // namespace lodestone::cuda::top_k

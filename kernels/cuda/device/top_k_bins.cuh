#pragma once

#include "kernels/cuda/device/top_k_row.cuh"

// Histograms of kernels/cuda/top_k.cu: which bin holds the k-th largest.
namespace lodestone::cuda::top_k {

// Equal parts of a range of scores. What lies outside is in the first and in the last; larger
// scores are never in lower bins.
struct ScoreBins {
  float low;
  float scale;  // bins of a range of 1
  __device__ uint32_t Of(float score) const {
    return min(__float2uint_rz((score - low) * scale), uint32_t{Tile::kBins - 1});
  }
  // Just below all scores of a bin but the first.
  __device__ float LowerEdge(int bin) const {
    return low + __fdividef(static_cast<float>(bin) - 0.01f, scale);
  }
};
__device__ inline float BinScale(float width) {
  return __fdividef(static_cast<float>(Tile::kBins), width);
}

// The bin that holds the k-th largest of all that was counted, from this lane's eight counts, the
// highest bin's first. By a warp.
__device__ inline Bin FindBin(uint32_t k, const uint32_t (&counts)[8]) {
  const int lane = threadIdx.x % 32;
  const uint32_t mine = ((counts[0] + counts[1]) + (counts[2] + counts[3])) +
                        ((counts[4] + counts[5]) + (counts[6] + counts[7]));
  uint32_t inclusive = mine;  // of the lanes from this one on
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t after = __shfl_down_sync(~0u, inclusive, offset);
    if (lane + offset < 32) inclusive += after;
  }
  uint32_t above = inclusive - mine;
  const uint32_t holds = __ballot_sync(~0u, above < k && inclusive >= k);
  if (holds == 0) return {};
  Bin bin{};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (above < k && above + counts[i] >= k) bin = {8 * lane + 7 - i, above, counts[i]};
    above += counts[i];
  }
  const int from = __ffs(static_cast<int>(holds)) - 1;
  return {__shfl_sync(~0u, bin.number, from), __shfl_sync(~0u, bin.above, from),
          __shfl_sync(~0u, bin.count, from)};
}

__device__ inline Bin FindBin(uint32_t k, const uint32_t (&bins)[Tile::kBins]) {
  const uint4* const fours = reinterpret_cast<const uint4*>(bins) + 2 * (threadIdx.x % 32);
  const uint4 low = fours[0];
  const uint4 high = fours[1];
  const uint32_t counts[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  return FindBin(k, counts);
}

// The same of the bins of all blocks.
template <typename Team>
__device__ inline Bin FindBinOfTeam(uint32_t k, const Team& team, TopKShared& shared) {
  uint32_t counts[8] = {};
  for (int i = 0; i < team.size; ++i) {
    const uint32_t* const bins = team.Of(i, shared).bins + 8 * (threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 8; ++j) counts[j] += bins[7 - j];
  }
  return FindBin(k, counts);
}

}  // namespace lodestone::cuda::top_k

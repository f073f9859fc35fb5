#pragma once

#include "kernels/cuda/device/top_k_row.cuh"
#include "kernels/cuda/device/warp_scan.cuh"

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
// highest bin's first, lane 0 having the highest eight. By a warp; the lane that `holds` it knows
// it.
struct OwnBin {
  bool holds;
  Bin bin;
};
__device__ inline OwnBin FindOwnBin(uint32_t k, const uint32_t (&counts)[8]) {
  const int highest = Tile::kBins - 1 - 8 * (static_cast<int>(threadIdx.x) % 32);
  uint32_t upto[8] = {counts[0]};  // counted down to this bin
#pragma unroll
  for (int i = 1; i < 8; ++i) upto[i] = upto[i - 1] + counts[i];
  const uint32_t from_here = ScanWarp(upto[7]);
  const uint32_t above = from_here - upto[7];
  OwnBin own{above < k && from_here >= k, {highest, above, 0}};
  uint32_t with_bin = from_here;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t down_to = above + upto[i];
    if (down_to < k) {
      --own.bin.number;
      own.bin.above = down_to;
    } else {
      with_bin = min(with_bin, down_to);
    }
  }
  own.bin.count = with_bin - own.bin.above;
  return own;
}

__device__ inline OwnBin FindOwnBin(uint32_t k, const uint32_t (&bins)[Tile::kBins]) {
  const uint4* const fours = reinterpret_cast<const uint4*>(bins) + 2 * (31 - threadIdx.x % 32);
  const uint4 low = fours[0];
  const uint4 high = fours[1];
  const uint32_t counts[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  return FindOwnBin(k, counts);
}

// The same of the bins of all blocks; all lanes know it.
template <typename Team>
__device__ inline Bin FindBinOfTeam(uint32_t k, const Team& team, TopKShared& shared) {
  uint32_t counts[8] = {};
  for (int i = 0; i < team.size; ++i) {
    const uint32_t* const bins = team.Of(i, shared).bins + 8 * (31 - threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 8; ++j) counts[j] += bins[7 - j];
  }
  const OwnBin own = FindOwnBin(k, counts);
  const uint32_t holds = __ballot_sync(~0u, own.holds);
  if (holds == 0) return {};
  const int from = __ffs(static_cast<int>(holds)) - 1;
  return {__shfl_sync(~0u, own.bin.number, from), __shfl_sync(~0u, own.bin.above, from),
          __shfl_sync(~0u, own.bin.count, from)};
}

}  // namespace lodestone::cuda::top_k

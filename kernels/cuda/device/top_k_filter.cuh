#pragma once

#include "kernels/cuda/device/top_k_bins.cuh"

// The filter of kernels/cuda/top_k.cu: a bound that somewhat more than k scores of a row reach, and
// the way of those to the first block.
namespace lodestone::cuda::top_k {

// What is asked of a block's sample, its first batch.
struct Quota {
  int share;   // so many groups of scores must reach the bound
  int groups;  // of a thread that are complete
  bool all;    // there are too few: the bound is -inf
  template <int kSlots>
  __device__ Quota(const RowPart<kSlots>& part, int k) {
    float wanted = static_cast<float>(k);
    if (part.num_batches > 1) {  // the sample is not the row
      const float expected = wanted / static_cast<float>(part.num_batches);
      wanted = expected + 4 * sqrtf(expected);
    }
    share = static_cast<int>(ceilf(wanted / static_cast<float>(part.blocks)));
    groups = min(part.visible / part.slot_stride, Tile::kGroups);
    const int all_groups = min(part.visible / (4 * part.blocks), Tile::kThreads * Tile::kGroups);
    all = groups == 0 || 8 * share > 7 * all_groups;
  }
};

// Of the maxima of groups, or of all scores.
struct SampleRange {
  float least;
  float low;  // nearly all are above it
  float high;
};

__device__ inline SampleRange RangeOfSample(float smallest, float largest, bool all,
                                            TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  uint2 range = {__reduce_min_sync(~0u, smallest != smallest ? ~0u : NumberKey(smallest)),
                 __reduce_max_sync(~0u, KeyOf(largest))};
  if (lane == 0) shared.warp_ranges[threadIdx.x / 32] = range;
  __syncthreads();
  range = {~0u, kNanKey};
  if (lane < Tile::kWarps) range = shared.warp_ranges[lane];
  const float least = ScoreOf(__reduce_min_sync(~0u, range.x));
  const float most = ScoreOf(__reduce_max_sync(~0u, range.y));
  if (all) return {least, least, most};
  // The highest of the warps' lowest and the lowest of their highest, so that outliers do not make
  // the bins wide.
  const float low = ScoreOf(__reduce_max_sync(~0u, range.x == ~0u ? kLowestKey : range.x));
  const float high = ScoreOf(__reduce_min_sync(~0u, range.y == kNanKey ? ~0u : range.y));
  return {least, low, fminf(most, high + (high - low))};
}

// Counts the maxima of this block's groups in bins.
template <int kSlots>
__device__ inline SampleRange CountSample(const float4 (&fours)[kSlots],
                                          const RowPart<kSlots>& part, const Quota& quota,
                                          TopKShared& shared) {
  static_assert(kSlots % Tile::kGroups == 0);
  const float nan = __int_as_float(0x7fffffff);
  float maxima[Tile::kGroups];
  float largest = nan;
  float smallest = nan;
#pragma unroll
  for (int i = 0; i < Tile::kGroups; ++i) {
    maxima[i] = nan;
#pragma unroll
    for (int j = i; j < kSlots; j += Tile::kGroups) {
      maxima[i] = fmaxf(maxima[i], part.Holds(0, j) ? MaxOf(fours[j]) : nan);
    }
    largest = fmaxf(largest, maxima[i]);
    if (i < quota.groups) smallest = fminf(smallest, maxima[i]);
  }
  if (quota.all) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (part.Holds(0, i)) smallest = fminf(smallest, MinOf(fours[i]));
    }
  }
  const SampleRange range = RangeOfSample(smallest, largest, quota.all, shared);
  if (quota.all) return range;
  const ScoreBins bins{range.low, BinScale(range.high - range.low)};
#pragma unroll
  for (int i = 0; i < Tile::kGroups; ++i) {
    if (maxima[i] == maxima[i]) atomicAdd(&shared.sample_bins[bins.Of(maxima[i])], 1u);
  }
  __syncthreads();
  return range;
}

// A bound that `quota.share` groups of this block reach. By a warp, after CountSample.
__device__ inline Bound BoundOfBlock(const SampleRange& range, const Quota& quota,
                                     const TopKShared& shared) {
  const float lowest = ScoreOf(kLowestKey);
  const float scale = BinScale(range.high - range.low);
  if (quota.all) return {lowest, range.low, scale};
  const Bin bin = FindBin(static_cast<uint32_t>(quota.share), shared.sample_bins);
  float bound = range.least;
  if (bin.number > 0) bound = ScoreBins{range.low, scale}.LowerEdge(bin.number);
  if (bin.count == 0) bound = lowest;
  return {bound, bound, BinScale(range.high - bound)};
}

// Of the row: the lowest bound of its blocks.
template <int kSlots, typename Team>
__device__ inline Bound BoundOfRow(const float4 (&fours)[kSlots], const RowPart<kSlots>& part,
                                   const Quota& quota, const Team& team, TopKShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool reads = team.rank < part.blocks;
  SampleRange range{};
  if (reads) range = CountSample(fours, part, quota, shared);
  team.Wait();
  if (reads && thread < 32) {
    const Bound bound = BoundOfBlock(range, quota, shared);
    if (thread < team.size) team.Of(thread, shared).bounds[team.rank] = bound;
  }
  team.Sync();
  Bound bound = shared.bounds[0];
  for (int i = 1; i < part.blocks; ++i) bound.bound = fminf(bound.bound, shared.bounds[i].bound);
  if (!quota.all) bound.low = bound.bound;
  return bound;
}

// Keeps the items of this warp among four float4 of each lane, `stride` entries apart, of which
// those before entry `end` count; their number, with the `count` before, which may exceed
// kWarpItems: then some are missing.
__device__ inline int KeepItems(const float4* fours, int entry, int stride, int end, float bound,
                                int count, TopKShared& shared) {
  const int warp = threadIdx.x / 32;
  const uint32_t below = (1u << (threadIdx.x % 32)) - 1;
  bool reaches[4];
  uint32_t lanes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reaches[i] = MaxOf(fours[i]) >= bound && entry + i * stride < end;
    lanes[i] = __ballot_sync(~0u, reaches[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = count + __popc(lanes[i] & below);
    if (reaches[i] && at < Tile::kWarpItems) {
      shared.items[warp][at] = fours[i];
      shared.item_entries[warp][at] = entry + i * stride;
    }
    count += __popc(lanes[i]);
  }
  return count;
}

// Sends the scores of this warp's `count` items that reach the bound to the first block.
template <int kSlots, typename Team>
__device__ inline void SendCandidates(int count, float bound, const RowPart<kSlots>& part,
                                      const Team& team, TopKShared& shared) {
  constexpr int kItems = 2;  // of a lane, at one time
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  TopKShared& first_block = team.Of(0, shared);
  if (count > Tile::kWarpItems) {
    if (lane == 0) atomicAdd(&first_block.num_candidates[team.rank], Tile::kMaxCandidates + 1);
    return;
  }
  for (int base = 0; base < count; base += 32 * kItems) {
    float values[4 * kItems];
    int entries[kItems];
    uint32_t lanes[4 * kItems];
    int total = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = base + 32 * i + lane;
      const float4 four = at < count ? shared.items[warp][at] : NoScores();
      entries[i] = at < count ? shared.item_entries[warp][at] : 0;
      values[4 * i] = four.x;
      values[4 * i + 1] = four.y;
      values[4 * i + 2] = four.z;
      values[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 4 * kItems; ++i) {
      lanes[i] = __ballot_sync(~0u, values[i] >= bound);
      total += __popc(lanes[i]);
    }
    int place = 0;
    if (lane == 0) {
      place = atomicAdd(&shared.num_sent, total);
      atomicAdd(&first_block.num_candidates[team.rank], total);
    }
    place = __shfl_sync(~0u, place, 0);
    if ((place + total) * part.blocks > Tile::kMaxCandidates) return;
#pragma unroll
    for (int i = 0; i < 4 * kItems; ++i) {
      const int at = place + __popc(lanes[i] & ((1u << lane) - 1));
      if (values[i] >= bound) {
        first_block.candidates[at * part.blocks + team.rank] = {values[i], entries[i / 4] + i % 4};
      }
      place += __popc(lanes[i]);
    }
  }
}

}  // namespace lodestone::cuda::top_k

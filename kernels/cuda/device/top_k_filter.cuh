#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_kth.cuh"

// The filter of kernels/cuda/top_k.cu: a bound that somewhat more than k scores of a row reach, and
// the items that hold them.
namespace lodestone::cuda::top_k {

// What is asked of a block's sample, its first batch.
struct Quota {
  int share;  // so many groups of scores must reach the bound
  bool all;   // there are too few groups: the bound is -inf
  template <int kSlots>
  __device__ Quota(const RowPart<kSlots>& part, int k) {
    float wanted = static_cast<float>(k);
    if (part.num_batches > 1) {  // the sample is not the row
      const float expected = wanted * static_cast<float>(32 * kSlots) / part.length;
      wanted = expected + 4 * sqrtf(expected);
    }
    share = static_cast<int>(ceilf(wanted / static_cast<float>(part.blocks)));
    const int groups = min(part.fours / part.blocks, Tile::kThreads * Tile::kGroups);
    all = 8 * share > 7 * groups;
  }
};

// Of the maxima of groups, or of all scores.
struct SampleRange {
  float low;  // nearly all are above it
  float high;
};

// From the least and the largest of each thread; exact, or without outliers, which make bins wide.
__device__ inline SampleRange RangeOfSample(float smallest, float largest, bool exact,
                                            TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  uint2 range = {__reduce_min_sync(~0u, smallest != smallest ? ~0u : NumberKey(smallest)),
                 __reduce_max_sync(~0u, KeyOf(largest))};
  if (lane == 0) shared.warp_ranges[threadIdx.x / 32] = range;
  __syncthreads();
  range = {~0u, kNanKey};
  if (lane < Tile::kWarps) range = shared.warp_ranges[lane];
  const float most = ScoreOf(__reduce_max_sync(~0u, range.y));
  if (exact) return {ScoreOf(__reduce_min_sync(~0u, range.x)), most};
  // The highest of the warps' lowest and the lowest of their highest.
  const float low = ScoreOf(__reduce_max_sync(~0u, range.x == ~0u ? kLowestKey : range.x));
  const float high = ScoreOf(__reduce_min_sync(~0u, range.y == kNanKey ? ~0u : range.y));
  return {low, low < high ? fminf(most, high + (high - low)) : most};
}

// Counts the maxima of this block's groups in bins; those that are no numbers in the lowest.
template <typename Row>
__device__ inline SampleRange CountSample(const Row& row, const Quota& quota, TopKShared& shared) {
  constexpr int kSlots = Row::kSlots;
  const float4(&fours)[kSlots] = row.fours;
  static_assert(kSlots % Tile::kGroups == 0);
  float maxima[Tile::kGroups];  // of the slots that arrive first
#pragma unroll
  for (int i = 0; i < Tile::kGroups; ++i) maxima[i] = MaxOf(fours[i]);
  float smallest = fminf(fminf(maxima[0], maxima[1]), fminf(maxima[2], maxima[3]));
  if (quota.all) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      smallest = fminf(smallest, MinOf(fours[i]));
      maxima[0] = fmaxf(maxima[0], MaxOf(fours[i]));
    }
  }
  const float largest = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
  const SampleRange range = RangeOfSample(smallest, largest, quota.all, shared);
  row.Prefetch();  // not earlier: it would be served beside the first batch
  if (quota.all) return range;
#pragma unroll
  for (int i = Tile::kGroups; i < kSlots; ++i) {
    maxima[i % Tile::kGroups] = fmaxf(maxima[i % Tile::kGroups], MaxOf(fours[i]));
  }
  const ScoreBins bins{range.low, BinScale(range.high - range.low)};
#pragma unroll
  for (int i = 0; i < Tile::kGroups; ++i) atomicAdd(&shared.sample_bins[bins.Of(maxima[i])], 1u);
  __syncthreads();
  return range;
}

// A bound that `quota.share` groups of this block reach; where too many are as low as the lowest,
// just above it or zero. By a warp, after CountSample.
__device__ inline float BoundOfBlock(const SampleRange& range, const Quota& quota,
                                     const TopKShared& shared) {
  if (quota.all) return ScoreOf(kLowestKey);
  const OwnBin own = FindOwnBin(static_cast<uint32_t>(quota.share), shared.sample_bins);
  const uint32_t holds = __ballot_sync(~0u, own.holds && own.bin.number > 0);
  if (holds == 0) return Above(PivotOf(range.low));
  const int number = __shfl_sync(~0u, own.bin.number, __ffs(static_cast<int>(holds)) - 1);
  return range.low + (static_cast<float>(number) - 0.01f) * (range.high - range.low) / Tile::kBins;
}

// Of the row: the lowest bound of its blocks. By the blocks that read it.
template <typename Row, typename Team>
__device__ inline Bound BoundOfRow(const Row& row, const Quota& quota, const Team& team,
                                   TopKShared& shared) {
  const SampleRange range = CountSample(row, quota, shared);
  const int blocks = row.part.blocks;
  if (threadIdx.x < 32) team.ShareBound(BoundOfBlock(range, quota, shared), blocks, shared);
  team.WaitForBounds(shared);
  float bound = shared.bounds[0];
  for (int i = 1; i < blocks; ++i) bound = fminf(bound, shared.bounds[i]);
  const float low = quota.all ? range.low : bound;
  return {bound, low, BinScale(range.high - low)};
}

// Where this warp's items are: shared memory addresses.
struct ItemPlaces {
  uint32_t fours;
  uint32_t entries;
  __device__ explicit ItemPlaces(const TopKShared& shared)
      : fours(SharedAddress(shared.items[threadIdx.x / 32])),
        entries(SharedAddress(shared.item_entries[threadIdx.x / 32])) {}
};

// Keeps the items of this warp among some slots, the first of which has this lane's float4 number
// `at`; their number, with the `count` before, which may exceed kWarpItems: then some are missing.
// `then` is called once the scores have been looked at.
struct Nothing {
  __device__ void operator()() const {}
};
template <int kQuads, typename Then = Nothing>
__device__ inline int KeepItems(const float4* fours, int at, float bound, int count,
                                const ItemPlaces& to, const Then& then = {}) {
  constexpr int kSlots = 4 * kQuads;
  const uint32_t below = (1u << threadIdx.x % 32) - 1;
  uint32_t lanes[kSlots];  // that have one
#pragma unroll
  for (int i = 0; i < kSlots; ++i) lanes[i] = __ballot_sync(~0u, MaxOf(fours[i]) >= bound);
  then();
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (lanes[i] == 0) continue;  // most slots, of a long row
    const uint32_t place = static_cast<uint32_t>(count + __popc(lanes[i] & below));
    const bool keep = MaxOf(fours[i]) >= bound && place < Tile::kWarpItems;
    StoreSharedIf(keep, to.fours + 16 * place, fours[i]);
    StoreSharedIf(keep, to.entries + 4 * place, 4 * (at + 32 * i));
    count += __popc(lanes[i]);
  }
  return count;
}

// Those of a row's tail, if this warp has it.
template <int kSlots>
__device__ inline int KeepTail(const RowPart<kSlots>& part, float bound, int count,
                               const ItemPlaces& to) {
  if (!part.last || part.visible % 4 == 0) return count;
  const float4 none = NoScores();
  const float4 tail[4] = {threadIdx.x % 32 == 0 ? part.LoadTail() : none, none, none, none};
  return KeepItems<1>(tail, part.fours, bound, count, to);
}

// A row of which a batch is in registers, from where the next is loaded into them as soon as they
// are free.
template <int kBatchSlots>
struct RegisterRow {
  static constexpr int kSlots = kBatchSlots;
  static constexpr int kBlocks = kSlots > 8 ? 1 : 2;  // of a processor
  static constexpr int kSharedBytes = 0;
  RowPart<kSlots> part;
  float4 fours[kSlots];  // the first batch, until Filter

  template <typename Team>
  __device__ RegisterRow(const TopKArgs& args, int64_t row, int visible, const Team& team, void*)
      : part(args, row, visible, team) {}
  __device__ void Load() {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) fours[i] = part.Load(0, i);
  }
  __device__ void TakeFirst() { part.DropOthers(0, fours); }
  __device__ void Prefetch() const { part.Prefetch(); }

  // Keeps the items of one batch, while the next is loaded, if there is one.
  template <bool kMore>
  __device__ int FilterBatch(int batch, float bound, int count, const ItemPlaces& to) {
    constexpr int kQuads = kSlots >= 8 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kSlots; i += 4 * kQuads) {
      count = KeepItems<kQuads>(fours + i, part.At(batch, i), bound, count, to);
      if constexpr (kMore) {
#pragma unroll
        for (int j = i; j < i + 4 * kQuads; ++j) fours[j] = part.Load(batch + 1, j);
      }
    }
    return count;
  }
  // Keeps the items of this warp; their number, which may exceed kWarpItems: then some are missing.
  __device__ int Filter(float bound, TopKShared& shared) {
    const ItemPlaces to(shared);
    int count = 0;
    int batch = 0;
#pragma unroll 1
    for (; batch + 1 < part.num_batches; ++batch) {
      count = FilterBatch<true>(batch, bound, count, to);
      part.DropOthers(batch + 1, fours);
    }
    count = FilterBatch<false>(batch, bound, count, to);
    count = KeepTail(part, bound, count, to);
    __syncwarp();
    return count;
  }
};

}  // namespace lodestone::cuda::top_k

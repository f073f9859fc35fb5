#pragma once

#include "kernels/cuda/device/wide_row.cuh"

// The k-th of a row of kernels/cuda/top_k_wide.cu, and the chosen entries in ascending order.
namespace lodestone::cuda::wide_top_k {

// Unique within a row; a larger one is chosen first.
__device__ inline uint64_t RankKey(float score, int entry) {
  return uint64_t{KeyOf(score)} << 32 | ~static_cast<uint32_t>(entry);
}

__device__ inline uint64_t NumberRankKey(float score, int entry) {
  return uint64_t{NumberKey(score)} << 32 | ~static_cast<uint32_t>(entry);
}

// Candidates: the scores of the items that reach the bound.
struct Candidates {
  const TopKShared& shared;
  float bound;
  int count;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
      const float4 four = shared.items[i];
      const int entry = shared.entries[i];
      if (four.x >= bound) f(four.x, entry);
      if (four.y >= bound) f(four.y, entry + 1);
      if (four.z >= bound) f(four.z, entry + 2);
      if (four.w >= bound) f(four.w, entry + 3);
    }
  }
};
// Of those, the chosen.
struct ChosenCandidates {
  Candidates candidates;
  uint64_t kth;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    candidates.ForEach([&](float score, int entry) {
      if (NumberRankKey(score, entry) >= kth) f(entry);
    });
  }
};
// Of a row that was selected from as a whole, the chosen.
struct ListedEntries {
  const TopKShared& shared;
  int count;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) f(shared.entries[i]);
  }
};

// The sum of the values of the threads before this one, and of all.
__device__ inline uint32_t BlockScan(uint32_t value, uint32_t& total, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  uint32_t inclusive = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == 31) shared.warp_values[warp] = inclusive;
  __syncthreads();
  const uint32_t of_warp = lane < Tile::kWarps ? shared.warp_values[lane] : 0;
  total = __reduce_add_sync(~0u, of_warp);
  return __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + inclusive - value;
}

// shared.bin, above_bin and in_bin: of the bin that holds the k-th largest of what the team
// counted. False, and nothing said, if it counted fewer.
template <typename Team>
__device__ inline bool FindBin(uint32_t k, const Team& team, TopKShared& shared) {
  const uint32_t bin = Tile::kBins - 1 - threadIdx.x;
  uint32_t count = 0;
  for (int i = 0; i < team.size; ++i) count += team.Of(i, shared).bins[bin];
  uint32_t total;
  const uint32_t above = BlockScan(count, total, shared);
  if (above < k && above + count >= k) {
    shared.bin = bin;
    shared.above_bin = above;
    shared.in_bin = count;
  }
  __syncthreads();
  return total >= k;
}

// shared.kth = the k-th largest of shared.ranked, a warp a key.
__device__ inline void RankKth(uint32_t k, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int count = shared.num_ranked;
  for (int i = threadIdx.x / 32; i < count; i += Tile::kWarps) {
    const uint64_t key = shared.ranked[i];
    uint32_t above = 0;
    for (int j = 0; j < count; j += 32) {
      above += __popc(__ballot_sync(~0u, j + lane < count && shared.ranked[j + lane] > key));
    }
    if (above == k - 1 && lane == 0) shared.kth = key;
  }
}

struct Range {
  uint64_t low;
  uint64_t high;
};

__device__ inline int BinShift(uint64_t width) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  return max(64 - __clzll(static_cast<int64_t>(width)) - kBinBits, 0);
}

// first_block.kth = the k-th largest rank key. Keys above range.high - (all in the last bin).
template <typename Team, typename Keys>
__device__ inline uint64_t SelectKth(const Keys& keys, uint32_t k, Range range, int shift,
                                     int visible, const Team& team, TopKShared& shared) {
  TopKShared& first_block = team.Of(0, shared);
  while (true) {
    keys.ForEach([&](float score, int entry) {
      const uint64_t key = RankKey(score, entry);
      if (key < range.low || key > range.high) return;
      const uint64_t bin = (key - range.low) >> shift;
      atomicAdd(&shared.bins[min(bin, uint64_t{Tile::kBins - 1})], 1u);
    });
    team.Sync();
    FindBin(k, team, shared);
    const uint32_t bin = shared.bin;
    k -= shared.above_bin;
    range.low += static_cast<uint64_t>(bin) << shift;
    if (bin < Tile::kBins - 1) range.high = min(range.high, range.low + (uint64_t{1} << shift) - 1);
    if (range.low == range.high) return range.low;
    if (shared.in_bin <= kMaxRanked) break;
    // No rank key of this row has a lower word below ~(visible - 1).
    const uint64_t least =
        (range.low & ~uint64_t{0xffffffffu}) | ~static_cast<uint32_t>(visible - 1);
    range.low = max(range.low, least);
    shift = BinShift(range.high - range.low);
    team.Sync();
    shared.bins[threadIdx.x] = 0;
    __syncthreads();
  }
  keys.ForEach([&](float score, int entry) {
    const uint64_t key = RankKey(score, entry);
    if (key < range.low || key > range.high) return;
    first_block.ranked[atomicAdd(&first_block.num_ranked, 1)] = key;
  });
  team.Sync();
  if (team.rank == 0) RankKth(k, shared);
  team.Sync();
  return first_block.kth;
}

// Writes the chosen entries in ascending order. By the first block.
template <typename Entries>
__device__ inline void StoreChosen(const Entries& entries, int visible, int32_t* out,
                            TopKShared& shared) {
  uint32_t before = 0;
  for (int first = 0; first < visible; first += kWindow) {
    const int end = min(visible - first, kWindow);
    constexpr int kBucketBits = 31 - __builtin_clz(Tile::kBuckets);
    const int shift = max(32 - __clz(end - 1) - kBucketBits, 5);
    if (first > 0) {
      __syncthreads();
      ClearOrder(end, shared);
      __syncthreads();
    }
    entries.ForEach([&](int entry) {
      const int at = entry - first;
      if (at < 0 || at >= end) return;
      atomicOr(&shared.chosen[at / 32], 1u << (at % 32));
      atomicAdd(&shared.buckets[at >> shift], 1u);
    });
    __syncthreads();
    uint2& two = reinterpret_cast<uint2*>(shared.buckets)[threadIdx.x];
    const uint2 counts = two;
    uint32_t total;
    const uint32_t mine = before + BlockScan(counts.x + counts.y, total, shared);
    two = {mine, mine + counts.x};
    __syncthreads();
    entries.ForEach([&](int entry) {
      const int at = entry - first;
      if (at < 0 || at >= end) return;
      const int word = at / 32;
      uint32_t place = shared.buckets[at >> shift];
      for (int i = (at >> shift) << (shift - 5); i < word; ++i) place += __popc(shared.chosen[i]);
      place += __popc(shared.chosen[word] & ((1u << (at % 32)) - 1));
      out[place] = entry;
    });
    before += total;
  }
}

__device__ inline int CandidateShift(const Bounds& bounds) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  return max(32 - __clz(bounds.high - bounds.low) - kBinBits, 0);
}

// Counts the candidates into the bins; false if there are fewer than k.
__device__ inline bool CountCandidates(const Candidates& candidates, uint32_t k, Bounds bounds,
                                TopKShared& shared) {
  const int shift = CandidateShift(bounds);
  candidates.ForEach([&](float score, int) {
    const uint32_t bin = (NumberKey(score) - bounds.low) >> shift;
    atomicAdd(&shared.bins[min(bin, uint32_t{Tile::kBins - 1})], 1u);
  });
  __syncthreads();
  return FindBin(k, OneBlock{}, shared);
}

// The k-th largest rank key of the candidates. By the first block.
__device__ inline uint64_t SelectFromItems(const Candidates& candidates, uint32_t k, Bounds bounds,
                                    int visible, TopKShared& shared) {
  const int shift = CandidateShift(bounds);
  const uint32_t bin = shared.bin;
  const uint32_t bin_low = bounds.low + (bin << shift);
  const uint32_t bin_width = bin == Tile::kBins - 1 ? ~bin_low : (1u << shift) - 1;
  k -= shared.above_bin;
  if (shared.in_bin > kMaxRanked) {
    __syncthreads();
    shared.bins[threadIdx.x] = 0;
    __syncthreads();
    const Range range = {uint64_t{bin_low} << 32,
                         uint64_t{bin_low + bin_width} << 32 | 0xffffffffu};
    return SelectKth(candidates, k, range, BinShift(range.high - range.low), visible,
                           OneBlock{}, shared);
  }
  candidates.ForEach([&](float score, int entry) {
    const uint32_t key = NumberKey(score);
    if (key - bin_low > bin_width) return;
    shared.ranked[atomicAdd(&shared.num_ranked, 1)] = NumberRankKey(score, entry);
  });
  __syncthreads();
  RankKth(k, shared);
  __syncthreads();
  return shared.kth;
}

// All rows that have more than k entries but not k numbers that reach the bound, or too many.
__device__ inline void SelectFromRow(const RowPart& part, int k, const BlockCluster& team,
                              TopKShared& shared) {
  TopKShared& first_block = team.Of(0, shared);
  __syncthreads();
  shared.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.num_items = 0;
  team.Sync();
  const Range range = {uint64_t{kNanKey} << 32, ~uint64_t{0}};
  const uint64_t kth =
      SelectKth(part, static_cast<uint32_t>(k), range, BinShift(range.high - range.low),
                      part.visible, team, shared);
  part.ForEach([&](float score, int entry) {
    if (RankKey(score, entry) < kth) return;
    first_block.entries[atomicAdd(&first_block.num_items, 1)] = entry;
  });
  team.Sync();
}

}  // namespace lodestone::cuda::wide_top_k

#pragma once

#include "kernels/cuda/device/top_k_bins.cuh"

// The k-th of a row of kernels/cuda/top_k.cu, and the chosen entries in ascending order.
namespace lodestone::cuda::top_k {

// The candidates in the first block: f(score, entry). A thread keeps two, of most lists all.
struct CandidateList {
  static constexpr int kOwn = 2;
  const TopKShared& shared;
  int end;  // of the places
  Candidate own[kOwn];
  __device__ CandidateList(const TopKShared& first_block, int end_place)
      : shared(first_block), end(end_place) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * Tile::kThreads;
      own[i] = at < end ? shared.candidates[at] : Candidate{0, -1};
    }
  }
  template <typename F>
  __device__ void ForEach(const F& f) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (own[i].entry >= 0) f(own[i].score, own[i].entry);
    }
#pragma unroll 1
    for (int i = threadIdx.x + kOwn * Tile::kThreads; i < end; i += Tile::kThreads) {
      const Candidate candidate = shared.candidates[i];
      if (candidate.entry >= 0) f(candidate.score, candidate.entry);
    }
  }
};

// shared.kth = the k-th largest of `count` ranked keys, a warp a key.
__device__ inline void RankKth(int count, uint32_t k, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < count; i += Tile::kWarps) {
    const uint64_t key = shared.ranked[i];
    const bool first = lane < count && shared.ranked[lane] > key;
    const bool second = lane + 32 < count && shared.ranked[lane + 32] > key;
    const int above = __popc(__ballot_sync(~0u, first)) + __popc(__ballot_sync(~0u, second));
    if (static_cast<uint32_t>(above) == k - 1 && lane == 0) shared.kth = key;
  }
}

struct Range {
  uint64_t low;
  uint64_t high;
};

// The k-th largest rank key of those in `range`. REQUIRES: they are k at least; num_ranked is 0.
template <typename Team, typename Scores>
__device__ __noinline__ uint64_t SelectKth(const Scores& scores, uint32_t k, Range range,
                                           int visible, const Team& team, TopKShared& shared) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  TopKShared& first_block = team.Of(0, shared);
  Bin bin;
  do {  // drops eight bits a round
    team.Sync();
    if (threadIdx.x < Tile::kBins) shared.bins[threadIdx.x] = 0;
    __syncthreads();
    const int bits = 64 - __clzll(static_cast<int64_t>(range.high - range.low));
    const int shift = max(bits - kBinBits, 0);
    scores.ForEach([&](float score, int entry) {
      const uint64_t key = RankKey(score, entry);
      if (key < range.low || key > range.high) return;
      atomicAdd(&shared.bins[(key - range.low) >> shift], 1u);
    });
    team.Sync();
    bin = FindBinOfTeam(k, team, shared);
    k -= bin.above;
    range.low += static_cast<uint64_t>(bin.number) << shift;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    if (range.high - range.low > width) range.high = range.low + width;
    if (range.low == range.high) return range.low;
    // No rank key of this row has a lower word below ~(visible - 1).
    range.low = max(range.low, range.low >> 32 << 32 | ~static_cast<uint32_t>(visible - 1));
  } while (bin.count > Tile::kMaxRanked);
  scores.ForEach([&](float score, int entry) {
    const uint64_t key = RankKey(score, entry);
    if (key < range.low || key > range.high) return;
    first_block.ranked[atomicAdd(&first_block.num_ranked, 1)] = key;
  });
  team.Sync();
  if (team.rank == 0) RankKth(static_cast<int>(bin.count), k, shared);
  team.Sync();
  return first_block.kth;
}

// The rank key of the k-th largest candidate; 0 if they are fewer than k.
__device__ inline uint64_t SelectFromList(const CandidateList& list, uint32_t k, const Bound& bound,
                                          int visible, TopKShared& shared) {
  const ScoreBins bins{bound.low, bound.scale};
  list.ForEach([&](float score, int) { atomicAdd(&shared.bins[bins.Of(score)], 1u); });
  __syncthreads();
  if (threadIdx.x < 32) {
    const Bin found = FindBin(k, shared.bins);
    if (threadIdx.x == 0) shared.bin = found;
  }
  __syncthreads();
  const Bin bin = shared.bin;
  if (bin.count == 0) return 0;
  if (bin.count > Tile::kMaxRanked) {
    return SelectKth(list, k, Range{1, ~uint64_t{0}}, visible, OneBlock{}, shared);
  }
  list.ForEach([&](float score, int entry) {
    if (bins.Of(score) != static_cast<uint32_t>(bin.number)) return;
    shared.ranked[atomicAdd(&shared.num_ranked, 1)] = RankKey(score, entry);
  });
  __syncthreads();
  RankKth(static_cast<int>(bin.count), k - bin.above, shared);
  __syncthreads();
  return shared.kth;
}

// Selects from all entries of the row: the chosen become the candidates, without gaps.
template <int kSlots, typename Team>
__device__ __noinline__ void SelectFromRow(const RowPart<kSlots>& part, int k, const Team& team,
                                           TopKShared& shared) {
  TopKShared& first_block = team.Of(0, shared);
  if (threadIdx.x == 0) shared.num_sent = 0;
  const Range range = {uint64_t{kNanKey} << 32, ~uint64_t{0}};
  const uint64_t kth = SelectKth(part, static_cast<uint32_t>(k), range, part.visible, team, shared);
  part.ForEach([&](float score, int entry) {
    if (RankKey(score, entry) < kth) return;
    first_block.candidates[atomicAdd(&first_block.num_sent, 1)] = {score, entry};
  });
  team.Sync();
}

// Those that are not ranked lower than the k-th, or all that are listed: f(entry).
struct ChosenCandidates {
  CandidateList list;
  bool all;
  float score;  // of the k-th
  int entry;
  __device__ ChosenCandidates(const CandidateList& candidates, uint64_t kth)
      : list(candidates),
        all(kth == 0),
        score(ScoreOf(static_cast<uint32_t>(kth >> 32))),
        entry(static_cast<int>(~static_cast<uint32_t>(kth))) {}
  template <typename F>
  __device__ void ForEach(const F& f) const {
    list.ForEach([&](float its_score, int its_entry) {
      if (its_score > score || (its_score == score && its_entry <= entry) || all) f(its_entry);
    });
  }
};

// What StoreChosen marks the first `entries` entries in.
__device__ inline void ClearOrder(int entries, TopKShared& shared) {
  const int vectors = (min(entries, Tile::kWindow) + 127) / 128;
  for (int i = threadIdx.x; i < vectors; i += Tile::kThreads) {
    reinterpret_cast<uint4*>(shared.chosen)[i] = uint4{};
  }
  for (int i = threadIdx.x; i < Tile::kBuckets; i += Tile::kThreads) shared.buckets[i] = 0;
}

// Turns the buckets' counts into how many there are before each, from `before` on; how many with
// all.
__device__ inline uint32_t ScanBuckets(uint32_t before, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  uint32_t* const own = shared.buckets + threadIdx.x * Tile::kOwnBuckets;
  uint32_t counts[Tile::kOwnBuckets];
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < Tile::kOwnBuckets; ++i) {
    counts[i] = own[i];
    mine += counts[i];
  }
  uint32_t inclusive = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += below;
  }
  if (lane == 31) shared.warp_sums[warp] = inclusive;
  __syncthreads();
  const uint32_t of_warp = lane < Tile::kWarps ? shared.warp_sums[lane] : 0;
  uint32_t place = before + __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + inclusive - mine;
#pragma unroll
  for (int i = 0; i < Tile::kOwnBuckets; ++i) {
    own[i] = place;
    place += counts[i];
  }
  return before + __reduce_add_sync(~0u, of_warp);
}

// Writes the chosen entries in ascending order. By the first block, after ClearOrder.
__device__ inline void StoreChosen(const ChosenCandidates& chosen, int visible, int32_t* out,
                                   TopKShared& shared) {
  constexpr int kBucketBits = 31 - __builtin_clz(Tile::kBuckets);
  uint32_t before = 0;
  for (int first = 0; first < visible; first += Tile::kWindow) {
    const int entries = min(visible - first, Tile::kWindow);
    const int shift = max(32 - __clz(entries - 1) - kBucketBits, 5);
    if (first > 0) {
      __syncthreads();
      ClearOrder(entries, shared);
      __syncthreads();
    }
    chosen.ForEach([&](int entry) {
      const uint32_t at = static_cast<uint32_t>(entry - first);
      if (at >= static_cast<uint32_t>(entries)) return;
      atomicOr(&shared.chosen[at / 32], 1u << (at % 32));
      atomicAdd(&shared.buckets[at >> shift], 1u);
    });
    __syncthreads();
    before = ScanBuckets(before, shared);
    __syncthreads();
    chosen.ForEach([&](int entry) {
      const uint32_t at = static_cast<uint32_t>(entry - first);
      if (at >= static_cast<uint32_t>(entries)) return;
      const uint32_t word = at / 32;
      uint32_t place = shared.buckets[at >> shift];
#pragma unroll 1
      for (uint32_t i = at >> shift << (shift - 5); i < word; ++i) {
        place += __popc(shared.chosen[i]);
      }
      out[place + __popc(shared.chosen[word] & ((1u << (at % 32)) - 1))] = entry;
    });
  }
}

}  // namespace lodestone::cuda::top_k

#pragma once

#include "kernels/cuda/device/top_k_bins.cuh"

// The k-th of a row of kernels/cuda/top_k.cu, and the chosen entries in ascending order.
namespace lodestone::cuda::top_k {

// The candidates of a row: f(score, entry). A thread keeps two, of most lists all.
struct CandidateList {
  static constexpr int kOwn = 2;
  const Candidate* all;
  int end;
  Candidate own[kOwn];
  __device__ CandidateList(uint32_t count, const Candidate* candidates)
      : all(candidates), end(static_cast<int>(count)) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = all[At(i)];
  }
  __device__ static int At(int round) {
    return static_cast<int>(threadIdx.x) + round * Tile::kThreads;
  }
  template <typename F>
  __device__ void ForEach(const F& f) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (At(i) < end) f(own[i].score, own[i].entry);
    }
#pragma unroll 1
    for (int i = At(kOwn); i < end; i += Tile::kThreads) {
      f(all[i].score, all[i].entry);
    }
  }
};

// shared.kth = the k-th largest of `count` ranked keys, a warp a key.
__device__ inline void RankKth(int count, uint32_t k, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
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
    const OwnBin own = FindOwnBin(k, shared.bins);
    if (own.holds) shared.bin = own.bin;
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

// Writes the entries that are not ranked lower than the k-th, in their order.
__device__ inline void StoreFromList(const CandidateList& list, uint64_t kth, int32_t* out,
                                     TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t below = (1u << lane) - 1;
  const float kth_score = ScoreOf(static_cast<uint32_t>(kth >> 32));
  const int kth_entry = static_cast<int>(~static_cast<uint32_t>(kth));
  const auto chosen = [&](int round, const Candidate& candidate) {
    return __ballot_sync(~0u, CandidateList::At(round) < list.end &&
                                  (candidate.score > kth_score ||
                                   (candidate.score == kth_score && candidate.entry <= kth_entry)));
  };
  // Two rounds at a time, of which the second counts 65,536 times.
  const auto store = [&](int round, const Candidate(&own)[2], uint32_t before) {
    const uint32_t lanes[2] = {chosen(round, own[0]), chosen(round + 1, own[1])};
    uint32_t* const sums = shared.round_sums[round / 2];
    if (lane == 0) sums[warp] = __popc(lanes[0]) | __popc(lanes[1]) << 16;
    __syncthreads();
    const uint32_t sum = lane < Tile::kWarps ? sums[lane] : 0;
    const uint32_t all = __reduce_add_sync(~0u, sum);
    const uint32_t earlier = __reduce_add_sync(~0u, lane < warp ? sum : 0);
    const uint32_t first = before + (earlier & 0xffff) + __popc(lanes[0] & below);
    const uint32_t second = before + (all & 0xffff) + (earlier >> 16) + __popc(lanes[1] & below);
    if (lanes[0] >> lane & 1) out[first] = own[0].entry;
    if (lanes[1] >> lane & 1) out[second] = own[1].entry;
    return before + (all & 0xffff) + (all >> 16);
  };
  uint32_t before = store(0, list.own, 0);
#pragma unroll 1
  for (int i = 2; i * Tile::kThreads < list.end; i += 2) {
    const Candidate more[2] = {list.all[CandidateList::At(i)], list.all[CandidateList::At(i + 1)]};
    before = store(i, more, before);
  }
}

// Selects from all entries of the row: the chosen, in any order, are `listed` then.
template <int kSlots, typename Team>
__device__ __noinline__ void SelectFromRow(const TopKArgs& args, int64_t row, int visible,
                                           const Team& team, TopKShared& shared) {
  const RowPart<kSlots> part(args, row, visible, team);
  TopKShared& first_block = team.Of(0, shared);
  if (threadIdx.x == 0) shared.num_sent = 0;
  const Range range = {uint64_t{kNanKey} << 32, ~uint64_t{0}};
  const uint64_t kth = SelectKth(part, static_cast<uint32_t>(args.k), range, visible, team, shared);
  part.ForEach([&](float score, int entry) {
    if (RankKey(score, entry) < kth) return;
    first_block.listed[atomicAdd(&first_block.num_sent, 1)] = entry;
  });
  team.Sync();
}

// What StoreListed marks the first `entries` entries in.
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

// Writes the `k` listed entries in ascending order. By the first block, after SelectFromRow.
__device__ inline void StoreListed(int k, int visible, int32_t* out, TopKShared& shared) {
  constexpr int kBucketBits = 31 - __builtin_clz(Tile::kBuckets);
  const auto for_each_listed = [&](const auto& f) {
    for (int i = threadIdx.x; i < k; i += Tile::kThreads) f(shared.listed[i]);
  };
  uint32_t before = 0;
  for (int first = 0; first < visible; first += Tile::kWindow) {
    const int entries = min(visible - first, Tile::kWindow);
    const int shift = max(32 - __clz(entries - 1) - kBucketBits, 5);
    __syncthreads();
    ClearOrder(entries, shared);
    __syncthreads();
    for_each_listed([&](int entry) {
      const uint32_t at = static_cast<uint32_t>(entry - first);
      if (at >= static_cast<uint32_t>(entries)) return;
      atomicOr(&shared.chosen[at / 32], 1u << (at % 32));
      atomicAdd(&shared.buckets[at >> shift], 1u);
    });
    __syncthreads();
    before = ScanBuckets(before, shared);
    __syncthreads();
    for_each_listed([&](int entry) {
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

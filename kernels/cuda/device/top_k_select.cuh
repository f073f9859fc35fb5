#pragma once

#include "kernels/cuda/device/top_k_kth.cuh"

// The k-th of a row of kernels/cuda/top_k.cu, and the chosen entries in ascending order: from its
// candidates, or from all of it.
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

// The rank key of the score of this key that is the `number`-th in the list.
__device__ inline uint64_t RankKeyInList(const CandidateList& list, uint32_t key, uint32_t number,
                                         TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  uint32_t* const counts = shared.bins;  // of the warps, round after round
  static_assert(Tile::kRounds * Tile::kWarps <= Tile::kBins);
  const auto equal = [&](int round) {
    const int at = CandidateList::At(round);
    return __ballot_sync(~0u, at < list.end && KeyOf(list.all[at].score) == key);
  };
  const int rounds = (list.end + Tile::kThreads - 1) / Tile::kThreads;
  __syncthreads();  // nobody reads bins any more
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const uint32_t lanes = equal(round);
    if (lane == 0) counts[round * Tile::kWarps + warp] = __popc(lanes);
  }
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const int place = round * Tile::kWarps + warp;
    uint32_t before = 0;
    for (int i = lane; i < place; i += 32) before += counts[i];
    before = __reduce_add_sync(~0u, before);
    const uint32_t lanes = equal(round);
    const bool is =
        (lanes >> lane & 1) != 0 && before + __popc(lanes & ((2u << lane) - 1)) == number;
    if (is) shared.kth = RankKey(ScoreOf(key), list.all[CandidateList::At(round)].entry);
  }
  __syncthreads();
  return shared.kth;
}

// The rank key of the k-th of candidates of which too many are in its bin; `low` is below all.
__device__ __noinline__ uint64_t SelectFromEquals(const CandidateList& list, uint32_t k, float low,
                                                  TopKShared& shared) {
  const uint32_t zero = KeyOf(0);
  Wanted wanted{k};
  uint64_t kth = uint64_t{zero} << 32;
  bool is_zero = false;
  if (low <= 0) {
    const Sides sides = CountAround(list, zero, OneBlock{}, shared).all;
    is_zero = wanted.Narrow(zero, sides);
    if (is_zero) wanted.k -= sides.above;
  }
  if (!is_zero) kth = FindKth(list, wanted, OneBlock{}, shared);
  if (static_cast<uint32_t>(kth) != 0) return kth;
  return RankKeyInList(list, static_cast<uint32_t>(kth >> 32), wanted.k, shared);
}

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

// The rank key of the k-th largest candidate; 0 if they are fewer than k.
__device__ inline uint64_t SelectFromList(const CandidateList& list, uint32_t k, const Bound& bound,
                                          TopKShared& shared) {
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
    const CandidateList copy = list;  // one whose address is taken is in local memory
    return SelectFromEquals(copy, k, bound.low, shared);
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

// Writes the k largest of a row with fewer candidates: these, which are all above `score`, and the
// first of its equals, if these are among the first 10,240 entries.
__device__ __noinline__ bool StoreWithEquals(const float4* fours, int num_fours, float score,
                                             uint32_t k, const CandidateList& list, int32_t* out,
                                             TopKShared& shared) {
  constexpr int kMaxSteps = Tile::kRounds / 2;
  static_assert(4 * Tile::kThreads * kMaxSteps == 10240);
  const uint32_t wanted = k - static_cast<uint32_t>(list.end);  // of its equals
  uint32_t equals = 0;                                          // that are written
  uint32_t written = 0;                                         // with those above
  int end = 0;                                                  // of the float4 seen so far
#pragma unroll 1
  for (int step = 0; step < kMaxSteps && equals < wanted; ++step, end += Tile::kThreads) {
    const int at = end + static_cast<int>(threadIdx.x);
    const float4 four = at < num_fours ? __ldg(fours + at) : NoScores();
    const float scores[4] = {four.x, four.y, four.z, four.w};
    uint32_t above = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      above |= uint32_t{scores[i] > score} << i;
      equal |= uint32_t{scores[i] == score} << i;
    }
    const Around around =
        AroundInBlock(__popc(above) | __popc(equal) << 16, shared.round_sums[step]);
    ChosenPlaces places(around, around.all.above + wanted - equals);
    places.Take(above, equal, [&](uint32_t place, int i) { out[written + place] = 4 * at + i; });
    const uint32_t taken = min(around.all.equal, wanted - equals);
    written += around.all.above + taken;
    equals += taken;
  }
  if (equals < wanted) return false;
#pragma unroll 1
  for (int i = threadIdx.x; i < list.end; i += Tile::kThreads) {
    const int entry = list.all[i].entry;
    if (entry >= 4 * min(end, num_fours)) out[static_cast<uint32_t>(i) + wanted] = entry;
  }
  return true;
}

// f(place, candidate) of a warp's part of the scores that are chosen, which `places` are for: those
// above a key and some of its equals.
template <int kSlots, typename F>
__device__ inline void VisitChosen(const RowPart<kSlots>& part, uint32_t key, ChosenPlaces places,
                                   const F& f) {
  const bool nan = key == kNanKey;
  const float value = ScoreOf(key);
  const auto take = [&](const float4& four, int entry, int count) {  // of the four scores
    if (__ballot_sync(~0u, count > 0 && (nan || MaxOf(four) >= value)) == 0) return;
    const float scores[4] = {four.x, four.y, four.z, four.w};
    uint32_t above = 0;
    uint32_t equal = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t other = KeyOf(scores[i]);
      above |= uint32_t{i < count && other > key} << i;
      equal |= uint32_t{i < count && other == key} << i;
    }
    places.Take(above, equal, [&](uint32_t place, int i) {
      const float score = i < 2 ? (i == 0 ? four.x : four.y) : (i == 2 ? four.z : four.w);
      f(place, Candidate{score, entry + i});
    });
  };
  constexpr int kBatch = 4;  // on their way together
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int at = part.first; at - lane < part.end && places.left(); at += 32 * kBatch) {
    float4 loaded[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) loaded[i] = part.LoadBefore(part.end, at + 32 * i);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      take(loaded[i], 4 * (at + 32 * i), at + 32 * i < part.end ? 4 : 0);
    }
  }
  if (part.last && places.left()) {
    take(lane == 0 ? part.LoadTail() : NoScores(), 4 * part.fours,
         lane == 0 ? part.visible - 4 * part.fours : 0);
  }
}

// Writes the k largest of all entries of the row, in their order, reading it again. The first
// block's pivot is what most of it is, or below the k-th.
template <int kSlots, typename Team>
__device__ __noinline__ void SelectFromRow(const TopKArgs& args, int64_t row, int visible,
                                           const Team& team, TopKShared& shared) {
  const RowPart<kSlots> part(args, row, visible, team);
  const uint32_t k = static_cast<uint32_t>(args.k);
  int32_t* const out = args.top_entries + row * args.k;
  team.Sync();
  TopKShared& first_block = team.Of(0, shared);
  uint32_t key = KeyOf(first_block.pivot);
  Around around = CountAround(part, key, team, shared);
  Wanted wanted{k};
  if (!wanted.Narrow(key, around.all)) {
    const uint32_t above = around.all.above;
    if (above >= k && above <= Tile::kMaxCandidates) {
      // Some warps had more items than there are places, no more.
      VisitChosen(part, key, ChosenPlaces(around, above),
                  [&](uint32_t place, const Candidate& candidate) {
                    first_block.candidates[place] = candidate;
                  });
      team.Sync();
      if (team.rank != 0) return;
      const CandidateList list(above, shared.candidates);
      const float low = ScoreOf(key + 1);
      StoreFromList(list, SelectFromEquals(list, k, low, shared), out, shared);
      return;
    }
    key = static_cast<uint32_t>(FindKth(part, wanted, team, shared) >> 32);
    around = CountAround(part, key, team, shared);
  }
  VisitChosen(part, key, ChosenPlaces(around, k),
              [&](uint32_t place, const Candidate& candidate) { out[place] = candidate.entry; });
}

}  // namespace lodestone::cuda::top_k

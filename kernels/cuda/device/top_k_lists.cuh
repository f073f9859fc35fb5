#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_held.cuh"
#include "kernels/cuda/device/top_k_select.cuh"

// The k largest of a HeldRow, from the candidates where their warps have listed them.
namespace lodestone::cuda::top_k {

// One warp's candidates. A lane keeps two, of most warps all.
struct WarpList {
  static constexpr int kOwn = 2;
  const uint16_t* indices;
  const float* scores;  // of the piece
  int first;            // entry of the piece
  int end;
  float own[kOwn];
  int entries[kOwn];
  __device__ WarpList(const HeldRow& row, int count, const TopKShared& shared)
      : indices(shared.lists[row.warp]), scores(row.scores()), first(4 * row.first), end(count) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int index = At(i) < end ? indices[At(i)] : 0;
      own[i] = scores[index];
      entries[i] = first + index;
    }
  }
  __device__ static int At(int round) { return static_cast<int>(threadIdx.x) % 32 + 32 * round; }
  __device__ bool long_one() const { return end > Tile::kMaxListed; }
  // f(is, score, entry) by all lanes, of those that no lane keeps: whether this lane has one.
  template <typename F>
  __device__ void VisitOthers(const F& f) const {
#pragma unroll 1
    for (int round = kOwn; 32 * round < end; ++round) {
      const bool is = At(round) < end;
      const int index = is ? indices[At(round)] : 0;
      f(is, scores[index], first + index);
    }
  }
};

// shared.kth = the k-th largest of `count` keys, of which each lane has two; a warp a key.
__device__ inline void RankBinned(uint64_t low, uint64_t high, int count, uint32_t k,
                                  TopKShared& shared) {
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < count; i += Tile::kWarps) {
    const uint64_t key = shared.ranked[i];
    const int above =
        __popc(__ballot_sync(~0u, low > key)) + __popc(__ballot_sync(~0u, high > key));
    if (static_cast<uint32_t>(above) == k - 1 && threadIdx.x % 32 == 0) shared.kth = key;
  }
}

// Writes those of this warp that are not ranked lower than the k-th from out[at] on; `chosen` are
// of the lane's own.
__device__ inline void StoreList(const WarpList& list, const bool (&chosen)[WarpList::kOwn],
                                 uint64_t kth, uint32_t at, int32_t* out) {
  const uint32_t below = (1u << threadIdx.x % 32) - 1;
#pragma unroll
  for (int i = 0; i < WarpList::kOwn; ++i) {
    const uint32_t lanes = __ballot_sync(~0u, chosen[i]);
    if (chosen[i]) out[at + __popc(lanes & below)] = list.entries[i];
    at += __popc(lanes);
  }
  list.VisitOthers([&](bool is, float score, int entry) {
    const bool takes = is && RankKey(score, entry) >= kth;
    const uint32_t lanes = __ballot_sync(~0u, takes);
    if (takes) out[at + __popc(lanes & below)] = entry;
    at += __popc(lanes);
  });
}

// Writes the k largest of the row, or returns false: the k-th is not among the candidates
// (shared.bin.count is 0), or too many are in its bin or one list is too long.
__device__ inline bool SelectFromLists(const WarpList& list, const Bound& bound, uint32_t k,
                                       int32_t* out, TopKShared& shared) {
  constexpr int kOwn = WarpList::kOwn;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const ScoreBins bins{bound.low, bound.scale};
  int numbers[kOwn];  // of the bins; -1: none
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    numbers[i] = list.At(i) < list.end ? static_cast<int>(bins.Of(list.own[i])) : -1;
    AddSharedIf(numbers[i] >= 0, SharedAddress(shared.bins) + 4 * numbers[i], 1);
  }
  if (!list.long_one()) {
    list.VisitOthers([&](bool is, float score, int) {
      AddSharedIf(is, SharedAddress(&shared.bins[bins.Of(score)]), 1);
    });
  } else {  // so that all see that there are too many
    AddSharedIf(lane == 0, SharedAddress(&shared.bins[Tile::kBins - 1]), kMaxHeldTopK);
  }
  __syncthreads();
  if (warp == 0) {
    const OwnBin own = FindOwnBin(k, shared.bins);
    if (own.holds) shared.bin = own.bin;
  }
  uint64_t keys[kOwn];  // while the other warps wait
#pragma unroll
  for (int i = 0; i < kOwn; ++i) keys[i] = RankKey(list.own[i], list.entries[i]);
  __syncthreads();
  const Bin bin = shared.bin;
  if (bin.count == 0 || bin.count > Tile::kMaxRanked) return false;
  uint32_t above = 0;
  uint32_t in[kOwn];  // lanes with one in the bin
  static_assert(kOwn == 2);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    above += __popc(__ballot_sync(~0u, numbers[i] > bin.number));
    in[i] = __ballot_sync(~0u, numbers[i] == bin.number);
  }
  if ((in[0] | in[1]) != 0) {
    int at = 0;
    if (lane == 0) at = TakeShared(&shared.num_ranked, __popc(in[0]) + __popc(in[1]));
    at = __shfl_sync(~0u, at, 0);
    const uint32_t below = (1u << lane) - 1;
    if (in[0] >> lane & 1) shared.ranked[at + __popc(in[0] & below)] = keys[0];
    if (in[1] >> lane & 1) shared.ranked[at + __popc(in[0]) + __popc(in[1] & below)] = keys[1];
  }
  list.VisitOthers([&](bool is, float score, int entry) {
    const int number = is ? static_cast<int>(bins.Of(score)) : -1;
    above += __popc(__ballot_sync(~0u, number > bin.number));
    if (number == bin.number) {
      shared.ranked[TakeShared(&shared.num_ranked, 1)] = RankKey(score, entry);
    }
  });
  if (lane == 0) shared.warp_sums[warp] = above;
  __syncthreads();
  const int count = static_cast<int>(bin.count);
  const uint64_t low = lane < count ? shared.ranked[lane] : 0;
  const uint64_t high = lane + 32 < count ? shared.ranked[lane + 32] : 0;
  RankBinned(low, high, count, k - bin.above, shared);
  uint32_t before = __reduce_add_sync(~0u, lane < warp ? shared.warp_sums[lane] : 0);
  __syncthreads();
  const uint64_t kth = shared.kth;
  const auto earlier = [&](uint64_t key) {  // chosen from the k-th's bin that are of earlier warps
    const int entry = static_cast<int>(~static_cast<uint32_t>(key));
    return __popc(__ballot_sync(~0u, key >= kth && entry < list.first));
  };
  before += earlier(low);
  if (count > 32) before += earlier(high);
  bool chosen[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) chosen[i] = numbers[i] >= bin.number && keys[i] >= kth;
  StoreList(list, chosen, kth, before, out);
  return true;
}

// Writes the k largest of the row if this key is the k-th's; what is on both sides of it.
__device__ __noinline__ Sides StoreIfKth(const HeldRow& row, uint32_t key, uint32_t k, int32_t* out,
                                         TopKShared& shared) {
  const HeldRow::Masks halves[2] = {row.Compare(0, key), row.Compare(1, key)};
  const uint32_t counts = (__popc(halves[0].above) + __popc(halves[1].above)) |
                          (__popc(halves[0].equal) + __popc(halves[1].equal)) << 16;
  __syncthreads();  // nobody reads warp_sums any more
  const Around around = AroundInBlock(counts, shared.warp_sums);
  Wanted wanted{k};
  if (!wanted.Narrow(key, around.all)) return around.all;
  ChosenPlaces places(around, k);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int entry = 4 * (row.first + half * HeldRow::kHalf + HeldRow::kOwn * row.lane);
    places.Take(halves[half].above, halves[half].equal,
                [&](uint32_t place, int i) { out[place] = entry + i; });
  }
  return around.all;
}

// The same from the candidates put together: how many these are. It has written if they are k at
// least and not more than kMaxGathered.
__device__ inline uint32_t SelectFromGathered(const WarpList& list, const Bound& bound, uint32_t k,
                                              int32_t* out, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  __syncthreads();  // nobody reads warp_sums any more
  if (lane == 0) shared.warp_sums[warp] = static_cast<uint32_t>(list.end);
  if (threadIdx.x < Tile::kBins) shared.bins[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t sum = lane < Tile::kWarps ? shared.warp_sums[lane] : 0;
  const uint32_t total = __reduce_add_sync(~0u, sum);
  if (total < k || total > Tile::kMaxGathered) return total;
  Candidate* const to = shared.gathered + __reduce_add_sync(~0u, lane < warp ? sum : 0);
  for (int i = lane; i < list.end; i += 32) {
    const int index = list.indices[i];
    to[i] = {list.scores[index], list.first + index};
  }
  __syncthreads();
  const CandidateList all(total, shared.gathered);
  StoreFromList(all, SelectFromList(all, k, bound, shared), out, shared);
  return total;
}

// The same of a row of which `count` scores of this warp are listed, and SelectFromLists could not,
// or of which no bound is known.
__device__ __noinline__ void SelectFromHeldRow(const HeldRow& row, const HeldSample& sample,
                                               Bound bound, int count, uint32_t k, int32_t* out,
                                               TopKShared& shared) {
  const auto gathered = [&] {
    return SelectFromGathered(WarpList(row, count, shared), bound, k, out, shared);
  };
  const auto done = [&](uint32_t total) { return total >= k && total <= Tile::kMaxGathered; };
  Wanted wanted{k};
  uint32_t total = 0;
  if (bound.bound > -kInfinity) {
    if (shared.bin.count != 0) total = gathered();
    if (done(total)) return;
    // The sample has more than its share of the largest, but then k of its own reach the next one.
    __syncthreads();
    if (threadIdx.x == 0) shared.bounds[0] = -kInfinity;
    __syncthreads();
    if (total < k) bound = sample.FindBound(static_cast<int>(k), shared);
  }
  row.StoreTail();
  if (!(bound.bound > -kInfinity)) {
    const float pivot = PivotOf(sample.bins.low);
    if (wanted.Narrow(KeyOf(pivot), StoreIfKth(row, KeyOf(pivot), k, out, shared))) return;
    const float above = Above(pivot);
    if (wanted.high == ~0u) bound = {above, above, BinScale(sample.most - pivot)};
  }
  if (total < k && bound.bound > -kInfinity) {
    count = row.Filter(bound.bound, shared);
    if (done(gathered())) return;
  }
  const uint32_t zero = KeyOf(0);
  if (!wanted.narrowed() && wanted.Narrow(zero, StoreIfKth(row, zero, k, out, shared))) return;
  const uint64_t kth = FindKth(row, wanted, OneBlock{}, shared);
  StoreIfKth(row, static_cast<uint32_t>(kth >> 32), k, out, shared);
}

}  // namespace lodestone::cuda::top_k

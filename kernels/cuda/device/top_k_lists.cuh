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

// Rank keys as scores and entries: what SelectKth takes.
struct KeyList {
  const uint64_t* keys;
  int count;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) {
      f(ScoreOf(static_cast<uint32_t>(keys[i] >> 32)),
        static_cast<int>(~static_cast<uint32_t>(keys[i])));
    }
  }
};

// shared.kth = the k-th largest of `count` keys, of which each lane has two; a warp a key.
__device__ inline void RankBinned(uint64_t low, uint64_t high, int count, uint32_t k,
                                  TopKShared& shared) {
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < count; i += Tile::kWarps) {
    const uint64_t key = shared.binned[i];
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

// The same of all warps where nothing but the k-th is known.
__device__ inline void StoreFromKth(const WarpList& list, uint64_t kth, int32_t* out,
                                    TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  bool chosen[WarpList::kOwn];
  uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < WarpList::kOwn; ++i) {
    chosen[i] = list.At(i) < list.end && RankKey(list.own[i], list.entries[i]) >= kth;
    count += __popc(__ballot_sync(~0u, chosen[i]));
  }
  list.VisitOthers([&](bool is, float score, int entry) {
    count += __popc(__ballot_sync(~0u, is && RankKey(score, entry) >= kth));
  });
  if (lane == 0) shared.warp_sums[warp] = count;
  __syncthreads();
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? shared.warp_sums[lane] : 0);
  StoreList(list, chosen, kth, before, out);
}

// Writes the k largest of the row, or returns false: the k-th is not among the candidates
// (shared.bin.count is 0), or too many are in its bin.
__device__ inline bool SelectFromLists(const WarpList& list, const Bound& bound, uint32_t k,
                                       int visible, int32_t* out, TopKShared& shared) {
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
  list.VisitOthers([&](bool is, float score, int) {
    AddSharedIf(is, SharedAddress(&shared.bins[bins.Of(score)]), 1);
  });
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
  if (bin.count == 0 || bin.count > Tile::kMaxBinned) return false;
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
    if (in[0] >> lane & 1) shared.binned[at + __popc(in[0] & below)] = keys[0];
    if (in[1] >> lane & 1) shared.binned[at + __popc(in[0]) + __popc(in[1] & below)] = keys[1];
  }
  list.VisitOthers([&](bool is, float score, int entry) {
    const int number = is ? static_cast<int>(bins.Of(score)) : -1;
    above += __popc(__ballot_sync(~0u, number > bin.number));
    if (number == bin.number) {
      shared.binned[TakeShared(&shared.num_ranked, 1)] = RankKey(score, entry);
    }
  });
  if (lane == 0) shared.warp_sums[warp] = above;
  __syncthreads();
  const int count = static_cast<int>(bin.count);
  if (count > Tile::kMaxRanked) {
    if (threadIdx.x == 0) shared.num_ranked = 0;
    const KeyList keys_of_bin = {shared.binned, count};
    const uint64_t kth =
        SelectKth(keys_of_bin, k - bin.above, Range{1, ~uint64_t{0}}, visible, OneBlock{}, shared);
    StoreFromKth(list, kth, out, shared);
    return true;
  }
  const uint64_t low = lane < count ? shared.binned[lane] : 0;
  const uint64_t high = lane + 32 < count ? shared.binned[lane + 32] : 0;
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

// Writes the k largest of a row of which no bound is known that k scores reach.
__device__ __noinline__ void SelectFromHeldRow(const HeldRow& row, uint32_t k, int32_t* out,
                                               TopKShared& shared) {
  row.WaitForAll();
  const Range all = {uint64_t{kNanKey} << 32, ~uint64_t{0}};
  const uint64_t kth = SelectKth(row, k, all, row.part.visible, OneBlock{}, shared);
  const uint32_t key = static_cast<uint32_t>(kth >> 32);
  const int count = row.Filter(key == kNanKey ? -kInfinity : ScoreOf(key), shared);
  StoreFromKth(WarpList(row, count, shared), kth, out, shared);
}

}  // namespace lodestone::cuda::top_k

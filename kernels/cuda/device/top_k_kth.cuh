#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_bins.cuh"

// The k-th score of all of a row, or of all its candidates, of kernels/cuda/top_k.cu: by histograms
// of keys, two passes for eight bits, which end at a value that many scores have or at a few
// scores. Whether the k-th is a certain value takes one pass. `Scores` have ForEach(f(score,
// entry)) for the threads of the team.
namespace lodestone::cuda::top_k {

// How many scores are larger than some key's and how many equal it.
struct Sides {
  uint32_t above;
  uint32_t equal;
};

// Of all scores, of this warp's, and of the warps whose scores are before this one's.
struct Around {
  Sides all;
  Sides own;
  Sides before;
};

// The k-th largest score of those whose keys are in a range is wanted.
struct Wanted {
  uint32_t k;
  uint32_t low = kNanKey;
  uint32_t high = ~0u;
  __device__ bool narrowed() const { return low != kNanKey || high != ~0u; }
  __device__ bool Has(uint32_t key) const { return key - low <= high - low; }
  // Leaves what is on the k-th's side of `key`; whether that is the k-th.
  __device__ bool Narrow(uint32_t key, const Sides& sides) {
    if (sides.above >= k) {
      low = key + 1;
      return false;
    }
    if (sides.above + sides.equal >= k) return true;
    high = key - 1;
    k -= sides.above + sides.equal;
    return false;
  }
};

constexpr float kInfinity = __builtin_huge_valf();

// The largest number that is smaller. REQUIRES: `number` is above -inf.
__device__ inline float Below(float number) {
  const int bits = __float_as_int(number);
  if ((bits & INT32_MAX) == 0) return __int_as_float(INT32_MIN + 1);
  return __int_as_float(bits + (bits < 0 ? 1 : -1));
}

// The smallest number that is larger. REQUIRES: `number` is not below zero.
__device__ inline float Above(float number) {
  return __int_as_float(__float_as_int(number + 0.0f) + 1);
}

// Zero, or the lowest score that can be the k-th if that is above zero. Scores are sums of what
// relu leaves, so most ties are there.
__device__ inline float PivotOf(float low) { return fmaxf(low, 0.0f); }

template <typename Scores, typename Team>
__device__ __noinline__ Around CountAround(const Scores& scores, uint32_t key, const Team& team,
                                           TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const bool nan = key == kNanKey;
  const float value = nan ? -kInfinity : ScoreOf(key);
  uint32_t all_scores = 0;
  uint32_t reach = 0;
  uint32_t above = 0;
  scores.ForEach([&](float score, int) {
    ++all_scores;
    reach += score >= value;
    above += score > value;
  });
  Sides own = nan ? Sides{reach, all_scores - reach} : Sides{above, reach - above};
  own = {__reduce_add_sync(~0u, own.above), __reduce_add_sync(~0u, own.equal)};
  if (lane == 0) shared.warp_counts[warp] = uint2{own.above, own.equal};
  team.Sync();
  Sides all{};
  Sides before{};
#pragma unroll 4
  for (int i = lane; i < Tile::kWarps * team.size; i += 32) {  // in the order of the pieces
    const uint2 counts = team.Of(i % team.size, shared).warp_counts[i / team.size];
    const bool earlier = i < warp * team.size + team.rank;
    all = {all.above + counts.x, all.equal + counts.y};
    if (earlier) before = {before.above + counts.x, before.equal + counts.y};
  }
  return {{__reduce_add_sync(~0u, all.above), __reduce_add_sync(~0u, all.equal)},
          own,
          {__reduce_add_sync(~0u, before.above), __reduce_add_sync(~0u, before.equal)}};
}

// The same of up to 32,768 scores of one block, whose warps have them one after the other, from
// each lane's counts: those above, and 65,536 times those equal. Nobody else uses `sums`.
__device__ inline Around AroundInBlock(uint32_t counts, uint32_t (&sums)[Tile::kWarps]) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t own = __reduce_add_sync(~0u, counts);
  if (lane == 0) sums[warp] = own;
  __syncthreads();
  const uint32_t sum = lane < Tile::kWarps ? sums[lane] : 0;
  const uint32_t all = __reduce_add_sync(~0u, sum);
  const uint32_t before = __reduce_add_sync(~0u, lane < warp ? sum : 0);
  const auto sides = [](uint32_t packed) { return Sides{packed & 0xffff, packed >> 16}; };
  return {sides(all), sides(own), sides(before)};
}

// The lowest and the highest key in the range that is wanted.
template <typename Scores, typename Team>
__device__ inline uint2 RangeOfKeys(const Scores& scores, const Wanted& wanted, const Team& team,
                                    TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  uint2 range = {~0u, 0};
  scores.ForEach([&](float score, int) {
    const uint32_t key = KeyOf(score);
    const bool is = wanted.Has(key);
    range = {min(range.x, is ? key : ~0u), max(range.y, is ? key : 0)};
  });
  range = {__reduce_min_sync(~0u, range.x), __reduce_max_sync(~0u, range.y)};
  if (lane == 0) shared.warp_ranges[threadIdx.x / 32] = range;
  team.Sync();
#pragma unroll 4
  for (int i = lane; i < Tile::kWarps * team.size; i += 32) {
    const uint2 other = team.Of(i % team.size, shared).warp_ranges[i / team.size];
    range = {min(range.x, other.x), max(range.y, other.y)};
  }
  return {__reduce_min_sync(~0u, range.x), __reduce_max_sync(~0u, range.y)};
}

// The k-th largest of the few keys that the blocks of the team have ranked. By all blocks.
template <typename Team>
__device__ inline uint64_t KthOfRanked(uint32_t k, const Team& team, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int counts = lane < team.size ? team.Of(lane % team.size, shared).num_ranked : 0;
  uint64_t low = 0;  // of lane's two
  uint64_t high = 0;
  int count = 0;
#pragma unroll 1
  for (int block = 0; block < team.size; ++block) {
    const int more = __shfl_sync(~0u, counts, block);
    const uint64_t* const ranked = team.Of(block, shared).ranked - count;
    if (lane >= count && lane < count + more) low = ranked[lane];
    if (lane + 32 >= count && lane + 32 < count + more) high = ranked[lane + 32];
    count += more;
  }
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < count; i += Tile::kWarps) {
    const uint64_t key = __shfl_sync(~0u, i < 32 ? low : high, i % 32);
    const int above =
        __popc(__ballot_sync(~0u, low > key)) + __popc(__ballot_sync(~0u, high > key));
    if (static_cast<uint32_t>(above) == k - 1 && lane == 0) shared.kth = key;
  }
  __syncthreads();
  return shared.kth;
}

// The rank key of the k-th largest score, or, if many have its value, that value's key times 2^32:
// then the k-th is the wanted.k-th of these. REQUIRES: num_ranked is 0.
template <typename Scores, typename Team>
__device__ __noinline__ uint64_t FindKth(const Scores& scores, Wanted& wanted, const Team& team,
                                         TopKShared& shared) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  const uint32_t bins = SharedAddress(shared.bins);
  Bin bin;
  do {
    const uint2 range = RangeOfKeys(scores, wanted, team, shared);
    if (range.x == range.y) return uint64_t{range.x} << 32;
    if (threadIdx.x < Tile::kBins) shared.bins[threadIdx.x] = 0;
    __syncthreads();
    const int shift = max(32 - __clz(static_cast<int>(range.y - range.x)) - kBinBits, 0);
    scores.ForEach([&](float score, int) {
      const uint32_t above = KeyOf(score) - range.x;
      AddSharedIf(above <= range.y - range.x, bins + 4 * (above >> shift), 1);
    });
    team.Sync();
    bin = FindBinOfTeam(wanted.k, team, shared);
    wanted.k -= bin.above;
    wanted.low = range.x + (static_cast<uint32_t>(bin.number) << shift);
    wanted.high = wanted.low + min(range.y - wanted.low, (1u << shift) - 1);
    if (shift == 0) return uint64_t{wanted.low} << 32;
  } while (bin.count > Tile::kMaxRanked);
  scores.ForEach([&](float score, int entry) {
    if (!wanted.Has(KeyOf(score))) return;
    shared.ranked[TakeShared(&shared.num_ranked, 1)] = RankKey(score, entry);
  });
  team.Sync();
  return KthOfRanked(wanted.k, team, shared);
}

// The lowest `count` bits of those that are set.
__device__ inline uint32_t LowestBits(uint32_t bits, uint32_t count) {
  if (count >= static_cast<uint32_t>(__popc(bits))) return bits;
  uint32_t rest = bits;
#pragma unroll 1
  for (uint32_t i = 0; i < count; ++i) rest &= rest - 1;
  return bits ^ rest;
}

// Where a warp writes its chosen scores: those above the k-th and the first of its equals.
struct ChosenPlaces {
  uint32_t at;     // place of the next one
  uint32_t above;  // that are still to come
  uint32_t equal;  // to be chosen
  __device__ ChosenPlaces(const Around& around, uint32_t k) {
    const uint32_t chosen = k - around.all.above;  // of all equals
    const uint32_t before = min(around.before.equal, chosen);
    at = around.before.above + before;
    above = around.own.above;
    equal = min(around.own.equal, chosen - before);
  }
  // f(place, bit) of the chosen ones among the next, of which each lane has up to 32: bits for
  // those above and for equals. By the warp.
  template <typename F>
  __device__ void Take(uint32_t lane_above, uint32_t lane_equal, const F& f) {
    const uint32_t mine = __popc(lane_above) | __popc(lane_equal) << 16;
    const uint32_t upto = ScanWarp(mine);
    const uint32_t all = __shfl_sync(~0u, upto, 31);
    const uint32_t earlier = min((upto - mine) >> 16, equal);
    uint32_t bits = lane_above | LowestBits(lane_equal, equal - earlier);
    uint32_t place = at + ((upto - mine) & 0xffff) + earlier;
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) f(place++, __ffs(static_cast<int>(bits)) - 1);
    const uint32_t taken = min(all >> 16, equal);
    at += (all & 0xffff) + taken;
    above -= all & 0xffff;
    equal -= taken;
  }
  __device__ bool left() const { return above + equal > 0; }
};

}  // namespace lodestone::cuda::top_k

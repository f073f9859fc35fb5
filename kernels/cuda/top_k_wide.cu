// Exact top-k of rows of fp32 scores of any width: TopKArgs in kernels/cuda/launchers.h. For rows
// that kernels/cuda/top_k.cu cannot keep in registers.
//
// A cluster of 8 blocks reads a row in batches. The first one gives a bound that about the k-th
// score reaches; scores that reach it go to the first block, four neighbours at a time, and it
// selects from them by a histogram and a rank among few. A row with too few or too many such scores
// is selected from by histograms over all of it, read again each time. No result depends on the
// order of atomics.
//
// Bound: launch and barriers, then bytes.

#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace lodestone::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kMaxCluster = 8;
constexpr int kHalf = 4;  // float4 of a thread that are loaded together
constexpr int kMaxRanked = 128;
constexpr int kWindow = 262144;  // entries put in order at one time
constexpr uint32_t kNanKey = 1;
constexpr uint32_t kLowestKey = 0x007fffff;  // of -inf

template <int kThreadsOf, typename TeamOf>
struct TopKTileOf {
  using Team = TeamOf;
  static constexpr int kThreads = kThreadsOf;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSegment = 4 * kThreads;    // entries that a block reads in a row
  static constexpr int kSlots = 2 * kHalf;         // segments of a block and batch
  static constexpr int kGroups = 2048 / kThreads;  // per thread, whose maxima are counted
  static constexpr int kMaxima = 32 * kGroups;     // of a warp
  static constexpr int kMaxItems = 2816;
  static constexpr int kBins = kThreads;
  static constexpr int kBuckets = 2 * kThreads;
};

struct Bounds {
  uint32_t low;   // so many keys as the warp's share reach it
  uint32_t high;  // the largest key
};
template <typename Tile>
struct TopKShared {
  float4 items[Tile::kMaxItems];  // of the row, that hold a candidate; the first block's are used
  int32_t entries[Tile::kMaxItems];  // their first entries
  uint32_t chosen[kWindow / 32];     // bitmap, first block
  uint32_t buckets[Tile::kBuckets];  // chosen per bucket of entries, then those before it
  uint32_t bins[Tile::kBins];
  uint64_t ranked[kMaxRanked];                // first block
  Bounds bounds[kMaxCluster * Tile::kWarps];  // of all warps of the row
  uint32_t warp_values[Tile::kWarps];
  uint64_t kth;  // first block
  int num_items;
  bool listed;
  int num_ranked;
  uint32_t bin;
  uint32_t above_bin;
  uint32_t in_bin;
};

// Of a number.
__device__ uint32_t NumberKey(float score) {
  const int bits = __float_as_int(score + 0.0f);  // -0 becomes +0
  return static_cast<uint32_t>(bits ^ (bits >> 31 | INT32_MIN));
}
__device__ uint32_t KeyOf(float score) { return score != score ? kNanKey : NumberKey(score); }
__device__ float ScoreOf(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
// Unique within a row; a larger one is chosen first.
__device__ uint64_t RankKey(float score, int entry) {
  return uint64_t{KeyOf(score)} << 32 | ~static_cast<uint32_t>(entry);
}

__device__ uint64_t NumberRankKey(float score, int entry) {
  return uint64_t{NumberKey(score)} << 32 | ~static_cast<uint32_t>(entry);
}

// The blocks of one row: one alone, or a cluster.
struct OneBlock {
  static constexpr int rank = 0;
  static constexpr int size = 1;
  template <typename Shared>
  __device__ Shared& Of(int, Shared& mine) const {
    return mine;
  }
  __device__ void Sync() const { __syncthreads(); }
};
struct BlockCluster {
  cg::cluster_group cluster = cg::this_cluster();
  int rank = static_cast<int>(cluster.block_rank());
  int size = static_cast<int>(cluster.num_blocks());

  template <typename Shared>
  __device__ Shared& Of(int block, Shared& mine) const {
    return *cluster.map_shared_rank(&mine, block);
  }
  __device__ void Sync() const {
    Arrive();
    Wait();
  }
  __device__ void Arrive() const { ClusterArrive(); }
  __device__ void Wait() const { ClusterWait(); }
};

template <typename Tile>
struct RowPart {
  const float* scores;
  int visible;
  int rank;
  int team;
  int num_batches;

  __device__ RowPart(const TopKArgs& args, int64_t row, int row_visible,
                     const typename Tile::Team& blocks)
      : scores(args.scores + row * args.score_stride),
        visible(row_visible),
        rank(blocks.rank),
        team(blocks.size) {
    const int batch = Tile::kSegment * Tile::kSlots * team;
    num_batches = (visible + batch - 1) / batch;
  }
  // First entry of this thread's float4 in a slot of a batch.
  __device__ int First(int batch, int slot) const {
    return ((slot * team + rank) * num_batches + batch) * Tile::kSegment +
           4 * static_cast<int>(threadIdx.x);
  }
  // NaN where there is no entry.
  __device__ void Load(int batch, int half, float4 (&fours)[kHalf]) const {
    int at = First(batch, half * kHalf);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float nan = __int_as_float(0x7fffffff);
      fours[i] = {nan, nan, nan, nan};
      if (at + 4 <= visible) {
        fours[i] = __ldg(reinterpret_cast<const float4*>(scores + at));
      } else if (at < visible) {
        fours[i].x = scores[at];
        if (at + 1 < visible) fours[i].y = scores[at + 1];
        if (at + 2 < visible) fours[i].z = scores[at + 2];
      }
      at += team * num_batches * Tile::kSegment;
    }
  }
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int step = 0; step < 2 * num_batches; ++step) {
      float4 fours[kHalf];
      Load(step / 2, step % 2, fours);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const int entry = First(step / 2, step % 2 * kHalf + i);
        const float values[4] = {fours[i].x, fours[i].y, fours[i].z, fours[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (entry + j < visible) f(values[j], entry + j);
        }
      }
    }
  }
};

__device__ float MaxOf(const float4& four) {
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

// Candidates: the scores of the items that reach the bound.
template <typename Tile>
struct Candidates {
  const TopKShared<Tile>& shared;
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
template <typename Tile>
struct ChosenCandidates {
  Candidates<Tile> candidates;
  uint64_t kth;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    candidates.ForEach([&](float score, int entry) {
      if (NumberRankKey(score, entry) >= kth) f(entry);
    });
  }
};
template <typename Tile>
struct ListedEntries {
  const TopKShared<Tile>& shared;
  int count;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int i = threadIdx.x; i < count; i += Tile::kThreads) f(shared.entries[i]);
  }
};

template <typename Tile>
__device__ void ClearOrder(int entries, TopKShared<Tile>& shared) {
  const int vectors = (min(entries, kWindow) + 127) / 128;
  for (int i = threadIdx.x; i < vectors; i += Tile::kThreads) {
    reinterpret_cast<uint4*>(shared.chosen)[i] = uint4{};
  }
  reinterpret_cast<uint2*>(shared.buckets)[threadIdx.x] = uint2{};
}

template <typename Tile>
__device__ void ClearShared(int max_visible, TopKShared<Tile>& shared) {
  ClearOrder<Tile>(max_visible, shared);
  shared.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.num_items = 0;
    shared.num_ranked = 0;
  }
}

template <typename Tile>
__device__ Bounds WarpBounds(const float4 (&a)[kHalf], const float4 (&b)[kHalf], int share) {
  constexpr int kOfHalf = Tile::kGroups / 2;
  uint32_t maxima[Tile::kGroups];
  uint32_t most = 0;
  uint32_t least = ~0u;
#pragma unroll
  for (int i = 0; i < kOfHalf; ++i) {
    float of_a = MaxOf(a[i]);
    float of_b = MaxOf(b[i]);
#pragma unroll
    for (int j = i + kOfHalf; j < kHalf; j += kOfHalf) {
      of_a = fmaxf(of_a, MaxOf(a[j]));
      of_b = fmaxf(of_b, MaxOf(b[j]));
    }
    maxima[2 * i] = KeyOf(of_a);
    maxima[2 * i + 1] = KeyOf(of_b);
    most = max(most, max(maxima[2 * i], maxima[2 * i + 1]));
    least = min(least, min(maxima[2 * i], maxima[2 * i + 1]));
  }
  constexpr int kSteps = 5;
  const uint32_t highest = __reduce_max_sync(~0u, most);
  uint32_t low = __reduce_min_sync(~0u, share <= 32 ? most : least);
  uint32_t high = highest;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t middle = low + (high - low + 1) / 2;
    int reaching = 0;
#pragma unroll
    for (int i = 0; i < Tile::kGroups; ++i) {
      reaching += __popc(__ballot_sync(~0u, maxima[i] >= middle));
    }
    if (reaching >= share) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return {low, highest};
}

// Lower bound and (of the sample) largest key of the row.
template <typename Tile>
__device__ Bounds RowBounds(const RowPart<Tile>& part, const float4 (&a)[kHalf],
                            const float4 (&b)[kHalf], int k, const typename Tile::Team& team,
                            TopKShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = team.rank * Tile::kWarps + static_cast<int>(threadIdx.x) / 32;
  const int warps = team.size * Tile::kWarps;
  const int active = part.num_batches > 1 ? warps : min(warps, part.visible / 128);
  const int wanted =
      part.num_batches == 1 ? k : (5 * k + 2 * part.num_batches + 2) / (2 * part.num_batches + 3);
  const int share = active == 0 ? Tile::kMaxima + 1 : (wanted + active - 1) / active;
  Bounds bounds = {~0u, 0};
  if (warp < active && share <= Tile::kMaxima) bounds = WarpBounds<Tile>(a, b, share);
  team.Wait();
  if (lane < team.size) team.Of(lane, shared).bounds[warp] = bounds;
  team.Sync();
  bounds = {~0u, 0};
  for (int i = lane; i < active; i += 32) {
    bounds.low = min(bounds.low, shared.bounds[i].low);
    bounds.high = max(bounds.high, shared.bounds[i].high);
  }
  bounds.low = __reduce_min_sync(~0u, bounds.low);
  bounds.high = __reduce_max_sync(~0u, bounds.high);
  if (share > Tile::kMaxima) bounds = {kLowestKey, 0xff800000u};
  bounds.low = max(bounds.low, kLowestKey);
  bounds.high = max(bounds.high, bounds.low);
  return bounds;
}

template <typename Tile>
__device__ void SendItems(const float4 (&fours)[kHalf], int first, int stride, float bound,
                          TopKShared<Tile>& first_block) {
  const int lane = threadIdx.x % 32;
  bool reaches[kHalf];
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    reaches[i] = MaxOf(fours[i]) >= bound;
    mine += reaches[i];
  }
  int inclusive = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  const int total = __shfl_sync(~0u, inclusive, 31);
  if (total == 0) return;
  int base = 0;
  if (lane == 0) base = atomicAdd(&first_block.num_items, total);
  base = __shfl_sync(~0u, base, 0);
  if (base + total > Tile::kMaxItems) return;
  int at = base + inclusive - mine;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    if (reaches[i]) {
      first_block.items[at] = fours[i];
      first_block.entries[at] = first + i * stride;
      ++at;
    }
  }
}

template <typename Tile>
__device__ uint32_t BlockScan(uint32_t value, uint32_t& total, TopKShared<Tile>& shared) {
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

template <typename Tile, typename Team>
__device__ bool FindBin(uint32_t k, const Team& team, TopKShared<Tile>& shared) {
  const uint32_t bin = Tile::kBins - 1 - threadIdx.x;
  uint32_t count = 0;
  for (int i = 0; i < team.size; ++i) count += team.Of(i, shared).bins[bin];
  uint32_t total;
  const uint32_t above = BlockScan<Tile>(count, total, shared);
  if (above < k && above + count >= k) {
    shared.bin = bin;
    shared.above_bin = above;
    shared.in_bin = count;
  }
  __syncthreads();
  return total >= k;
}

template <typename Tile>
__device__ void RankKth(uint32_t k, TopKShared<Tile>& shared) {
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

template <typename Tile>
__device__ int BinShift(uint64_t width) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  return max(64 - __clzll(static_cast<int64_t>(width)) - kBinBits, 0);
}

// first_block.kth = the k-th largest rank key. Keys above range.high - (all in the last bin).
template <typename Tile, typename Team, typename Keys>
__device__ uint64_t SelectKth(const Keys& keys, uint32_t k, Range range, int shift, int visible,
                              const Team& team, TopKShared<Tile>& shared) {
  TopKShared<Tile>& first_block = team.Of(0, shared);
  while (true) {
    keys.ForEach([&](float score, int entry) {
      const uint64_t key = RankKey(score, entry);
      if (key < range.low || key > range.high) return;
      const uint64_t bin = (key - range.low) >> shift;
      atomicAdd(&shared.bins[min(bin, uint64_t{Tile::kBins - 1})], 1u);
    });
    team.Sync();
    FindBin<Tile>(k, team, shared);
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
    shift = BinShift<Tile>(range.high - range.low);
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
  if (team.rank == 0) RankKth<Tile>(k, shared);
  team.Sync();
  return first_block.kth;
}

// Writes the chosen entries in ascending order. By the first block.
template <typename Tile, typename Entries>
__device__ void StoreChosen(const Entries& entries, int visible, int32_t* out,
                            TopKShared<Tile>& shared) {
  uint32_t before = 0;
  for (int first = 0; first < visible; first += kWindow) {
    const int end = min(visible - first, kWindow);
    constexpr int kBucketBits = 31 - __builtin_clz(Tile::kBuckets);
    const int shift = max(32 - __clz(end - 1) - kBucketBits, 5);
    if (first > 0) {
      __syncthreads();
      ClearOrder<Tile>(end, shared);
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
    const uint32_t mine = before + BlockScan<Tile>(counts.x + counts.y, total, shared);
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

template <typename Tile>
__device__ int CandidateShift(const Bounds& bounds) {
  constexpr int kBinBits = 31 - __builtin_clz(Tile::kBins);
  return max(32 - __clz(bounds.high - bounds.low) - kBinBits, 0);
}

template <typename Tile>
__device__ bool CountCandidates(const Candidates<Tile>& candidates, uint32_t k, Bounds bounds,
                                TopKShared<Tile>& shared) {
  const int shift = CandidateShift<Tile>(bounds);
  candidates.ForEach([&](float score, int) {
    const uint32_t bin = (NumberKey(score) - bounds.low) >> shift;
    atomicAdd(&shared.bins[min(bin, uint32_t{Tile::kBins - 1})], 1u);
  });
  __syncthreads();
  return FindBin<Tile>(k, OneBlock{}, shared);
}

// The k-th largest rank key of the candidates. By the first block.
template <typename Tile>
__device__ uint64_t SelectFromItems(const Candidates<Tile>& candidates, uint32_t k, Bounds bounds,
                                    int visible, TopKShared<Tile>& shared) {
  const int shift = CandidateShift<Tile>(bounds);
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
    return SelectKth<Tile>(candidates, k, range, BinShift<Tile>(range.high - range.low), visible,
                           OneBlock{}, shared);
  }
  candidates.ForEach([&](float score, int entry) {
    const uint32_t key = NumberKey(score);
    if (key - bin_low > bin_width) return;
    shared.ranked[atomicAdd(&shared.num_ranked, 1)] = NumberRankKey(score, entry);
  });
  __syncthreads();
  RankKth<Tile>(k, shared);
  __syncthreads();
  return shared.kth;
}

// All rows that have more than k entries but not k numbers that reach the bound, or too many.
template <typename Tile>
__device__ void SelectFromRow(const RowPart<Tile>& part, int k, const typename Tile::Team& team,
                              TopKShared<Tile>& shared) {
  TopKShared<Tile>& first_block = team.Of(0, shared);
  __syncthreads();
  shared.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.num_items = 0;
  team.Sync();
  const Range range = {uint64_t{kNanKey} << 32, ~uint64_t{0}};
  const uint64_t kth =
      SelectKth<Tile>(part, static_cast<uint32_t>(k), range, BinShift<Tile>(range.high - range.low),
                      part.visible, team, shared);
  part.ForEach([&](float score, int entry) {
    if (RankKey(score, entry) < kth) return;
    first_block.entries[atomicAdd(&first_block.num_items, 1)] = entry;
  });
  team.Sync();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads > 512 ? 1 : 1024 / Tile::kThreads)
    TopKKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared<Tile>*>(smem);
  const typename Tile::Team team;
  ClearShared<Tile>(static_cast<int>(args.max_visible), shared);
  team.Arrive();
  WaitForPreviousKernel();
  AllowNextKernel();

  const int64_t row = blockIdx.x / static_cast<unsigned>(team.size);
  int32_t* const out = args.top_entries + row * args.k;
  const int visible = args.num_visible[row];
  if (visible <= args.k) {
    if (team.rank == 0) {
      for (int i = threadIdx.x; i < args.k; i += Tile::kThreads) out[i] = i < visible ? i : -1;
    }
    team.Wait();
    return;
  }
  const RowPart<Tile> part(args, row, visible, team);
  TopKShared<Tile>& first_block = team.Of(0, shared);
  float4 a[kHalf];
  float4 b[kHalf];
  part.Load(0, 0, a);
  part.Load(0, 1, b);
  const Bounds bounds = RowBounds<Tile>(part, a, b, args.k, team, shared);
  const float bound = ScoreOf(bounds.low);
  const int stride = part.First(0, 1) - part.First(0, 0);
  for (int batch = 0; batch < part.num_batches; ++batch) {
    const bool more = batch + 1 < part.num_batches;
    SendItems<Tile>(a, part.First(batch, 0), stride, bound, first_block);
    if (more) part.Load(batch + 1, 0, a);
    SendItems<Tile>(b, part.First(batch, kHalf), stride, bound, first_block);
    if (more) part.Load(batch + 1, 1, b);
  }
  team.Sync();
  const uint32_t k = static_cast<uint32_t>(args.k);
  if (team.rank != 0) {
    team.Arrive();
    team.Wait();
    if (!first_block.listed) SelectFromRow<Tile>(part, args.k, team, shared);
    team.Arrive();
    team.Wait();
    return;
  }
  const Candidates<Tile> candidates{shared, bound, shared.num_items};
  const bool listed =
      candidates.count <= Tile::kMaxItems && CountCandidates<Tile>(candidates, k, bounds, shared);
  if (threadIdx.x == 0) shared.listed = listed;
  team.Arrive();
  if (listed) {
    const uint64_t kth = SelectFromItems<Tile>(candidates, k, bounds, visible, shared);
    team.Wait();
    team.Arrive();
    StoreChosen<Tile>(ChosenCandidates<Tile>{candidates, kth}, visible, out, shared);
  } else {
    team.Wait();
    SelectFromRow<Tile>(part, args.k, team, shared);
    team.Arrive();
    StoreChosen<Tile>(ListedEntries<Tile>{shared, args.k}, visible, out, shared);
  }
  team.Wait();
#endif
}

template <typename Tile>
void LaunchTile(const TopKArgs& args, int cluster, cudaStream_t stream) {
  const auto kernel = TopKKernel<Tile>;
  constexpr int kSharedBytes = static_cast<int>(sizeof(TopKShared<Tile>));
  static_assert(kSharedBytes <= 99 * 1024, "more than some architectures have");
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  LaunchOverlapped(kernel,
                   {.blocks = args.num_rows * cluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = cluster},
                   stream, args);
}

}  // namespace

void LaunchWideTopK(const TopKArgs& args, cudaStream_t stream) {
  LaunchTile<TopKTileOf<512, BlockCluster>>(args, 8, stream);
}

}  // namespace lodestone::cuda

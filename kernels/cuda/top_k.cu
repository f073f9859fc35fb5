// Exact top-k of rows of fp32 scores: TopKArgs in kernels/cuda/launchers.h.
//
// One cluster of 1, 2, 4 or 8 thread blocks a row; the row is read once and stays in registers as
// keys whose unsigned order is the order of the scores. Then
//   1. every block counts maxima of its small groups and finds a key that k of them reach, and one
//      that k / cluster reach. The largest of the first kind, and the smallest of the second, are
//      lower bounds of the row's k-th key;
//   2. the keys that reach the bound (about k, whatever the width) go to the first block, which
//      finds the k-th exactly: a histogram over their range, then a rank in the bin that holds it.
//      A short row does this on all its keys, without step 1;
//   3. every block marks the chosen in a bitmap, counts, and writes them in ascending order. Keys
//      equal to the k-th are taken from the lowest entry on.
// Rows where too many keys reach the bound (most equal, say) take a bisection by counting instead
// of step 2. No result depends on the order of atomics.
//
// Bound: launch and barriers up to about 8 M scores, bytes beyond. Measured on an H200: 8.5 us for
// one row of 32,768, 0.26 of the bound for 1,024 such rows.

#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/score_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace lodestone::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2 * kThreads;
constexpr int kMaxSurvivors = 16384;
constexpr int kMaxDirect = 8;  // keys per thread of a row that is selected from directly
constexpr int kMaxCluster = 8;
constexpr uint32_t kMissing = 0;  // no entry; below the key of every score

struct Counts {
  int above;  // keys above the k-th
  int equal;  // keys equal to it
};

struct TopKShared {
  uint32_t survivors[kMaxSurvivors];  // first block of the cluster only
  uint32_t bins[kBins];
  uint32_t above[kThreads];  // bitmaps of this block's part of the row
  uint32_t equal[kThreads];
  uint32_t warp_values[kWarps];
  uint32_t warp_more[kWarps];
  uint32_t ranked[32];
  int num_survivors;
  int num_ranked;
  uint32_t bin;  // results of FindBin
  uint32_t above_bin;
  uint32_t share_bin;
  uint32_t bound;        // k keys of this block reach it
  uint32_t share_bound;  // k / cluster keys of this block reach it
  uint32_t kth;          // first block: the k-th key of the row
  Counts counts;         // of this block's part
  int count_of_row;      // first block: bisection
};

// A barrier of the whole row.
__device__ void SyncRow(cg::cluster_group& cluster) {
  if (cluster.num_blocks() == 1) {
    __syncthreads();
  } else {
    cluster.sync();
  }
}

// keys[4 i + j] is entry first + 4096 i + 4 t + j of the row, t this thread.
template <int kPerThread>
__device__ void LoadKeys(const TopKArgs& args, int64_t row, int first, int visible,
                         uint32_t (&keys)[kPerThread]) {
  const float* scores = args.scores + row * args.score_stride;
#pragma unroll
  for (int i = 0; i < kPerThread / 4; ++i) {
    const int at = first + 4 * (i * kThreads + static_cast<int>(threadIdx.x));
    float4 four{};
    if (at + 4 <= visible) {
      four = __ldg(reinterpret_cast<const float4*>(scores + at));
    } else {
      if (at < visible) four.x = scores[at];
      if (at + 1 < visible) four.y = scores[at + 1];
      if (at + 2 < visible) four.z = scores[at + 2];
    }
    keys[4 * i] = at < visible ? KeyOf(four.x) : kMissing;
    keys[4 * i + 1] = at + 1 < visible ? KeyOf(four.y) : kMissing;
    keys[4 * i + 2] = at + 2 < visible ? KeyOf(four.z) : kMissing;
    keys[4 * i + 3] = at + 3 < visible ? KeyOf(four.w) : kMissing;
  }
}

// Smallest and largest of all threads' values.
struct Range {
  uint32_t low;
  uint32_t high;
};
__device__ Range BlockRange(uint32_t low, uint32_t high, TopKShared& shared) {
  low = __reduce_min_sync(~0u, low);
  high = __reduce_max_sync(~0u, high);
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    shared.warp_values[threadIdx.x / 32] = low;
    shared.warp_more[threadIdx.x / 32] = high;
  }
  __syncthreads();
  const Range range{__reduce_min_sync(~0u, shared.warp_values[lane]),
                    __reduce_max_sync(~0u, shared.warp_more[lane])};
  __syncthreads();
  return range;
}

// Bits to drop so that a range of `width` + 1 keys fits the bins.
__device__ int BinShift(uint32_t width) {
  const int bits = 32 - __clz(width);
  return max(bits - (31 - __clz(kBins)), 0);
}

// The bins that hold the k-th and the share-th largest of what was counted, and how many lie above
// the first. REQUIRES: at least k were counted; share <= k.
__device__ void FindBin(uint32_t k, uint32_t share, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t high_bin = kBins - 1 - 2 * threadIdx.x;  // this thread's two, from the top
  const uint2 two = *reinterpret_cast<const uint2*>(&shared.bins[high_bin - 1]);
  const uint32_t counts[2] = {two.y, two.x};
  uint32_t inclusive = two.x + two.y;
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == 31) shared.warp_values[warp] = inclusive;
  __syncthreads();
  uint32_t above = __reduce_add_sync(~0u, lane < warp ? shared.warp_values[lane] : 0) + inclusive -
                   two.x - two.y;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (above < k && above + counts[i] >= k) {
      shared.bin = high_bin - i;
      shared.above_bin = above;
    }
    if (above < share && above + counts[i] >= share) shared.share_bin = high_bin - i;
    above += counts[i];
  }
  __syncthreads();
}

__device__ void ClearBins(TopKShared& shared) {
  shared.bins[threadIdx.x] = 0;
  shared.bins[threadIdx.x + kThreads] = 0;
}

// shared.bound and share_bound: keys that at least k and `share` of this block's keys reach, as
// large as is cheap to find; kMissing if the block has too few. Counts maxima of groups of keys.
template <int kPerThread>
__device__ void FindBounds(const uint32_t (&keys)[kPerThread], uint32_t k, uint32_t share,
                           TopKShared& shared) {
  constexpr int kGroup = kPerThread >= 16 ? 8 : kPerThread / 2;
  constexpr int kGroups = kPerThread / kGroup;
  uint32_t maxima[kGroups];
  uint32_t low = ~0u;
  uint32_t high = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    maxima[i] = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) maxima[i] = max(maxima[i], keys[kGroup * i + j]);
    low = min(low, maxima[i]);
    high = max(high, maxima[i]);
  }
  ClearBins(shared);
  const Range range = BlockRange(low, high, shared);
  const int shift = BinShift(range.high - range.low);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    atomicAdd(&shared.bins[(maxima[i] - range.low) >> shift], 1u);
  }
  __syncthreads();
  FindBin(k, share, shared);
  if (threadIdx.x == 0) {
    shared.bound = range.low + (shared.bin << shift);
    shared.share_bound = range.low + (shared.share_bin << shift);
  }
}

// Copies the keys that reach `bound` to the first block of the cluster; num_survivors may exceed
// kMaxSurvivors, and then only some were copied.
template <int kPerThread>
__device__ void SendSurvivors(const uint32_t (&keys)[kPerThread], uint32_t bound,
                              TopKShared& first_block) {
  const int lane = threadIdx.x % 32;
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) mine += keys[i] >= bound;
  int inclusive = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  int base = 0;
  if (lane == 31 && inclusive > 0) base = atomicAdd(&first_block.num_survivors, inclusive);
  int at = __shfl_sync(~0u, base, 31) + inclusive - mine;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (keys[i] < bound) continue;
    if (at < kMaxSurvivors) first_block.survivors[at] = keys[i];
    ++at;
  }
}

// The k-th largest of at most 32 keys of shared.ranked, by one warp.
__device__ void RankFew(uint32_t k, TopKShared& shared) {
  const int lane = threadIdx.x;
  const uint32_t key = lane < shared.num_ranked ? shared.ranked[lane] : kMissing;
  uint32_t above = 0;
  uint32_t reaching = 0;
  for (int i = 0; i < shared.num_ranked; ++i) {
    const uint32_t other = __shfl_sync(~0u, key, i);
    above += other > key;
    reaching += other >= key;
  }
  if (key != kMissing && above < k && reaching >= k) shared.kth = key;
}

// Keys to select from: this thread's share of the survivors, or its own keys.
struct Survivors {
  const TopKShared& shared;
  template <typename F>
  __device__ void ForEach(const F& f) const {
    for (int i = threadIdx.x; i < shared.num_survivors; i += kThreads) f(shared.survivors[i]);
  }
};
template <int kPerThread>
struct OwnKeys {
  const uint32_t (&keys)[kPerThread];
  template <typename F>
  __device__ void ForEach(const F& f) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (keys[i] != kMissing) f(keys[i]);
    }
  }
};

// shared.kth = the k-th largest of all threads' keys. By a whole block.
template <typename Keys>
__device__ void SelectKth(const Keys& keys, uint32_t k, TopKShared& shared) {
  uint32_t low = ~0u;
  uint32_t high = 0;
  keys.ForEach([&](uint32_t key) {
    low = min(low, key);
    high = max(high, key);
  });
  ClearBins(shared);
  Range range = BlockRange(low, high, shared);
  while (true) {  // at most three times: each round drops 11 bits
    const int shift = BinShift(range.high - range.low);
    if (threadIdx.x == 0) shared.num_ranked = 0;
    keys.ForEach([&](uint32_t key) {
      if (key >= range.low && key <= range.high) {
        atomicAdd(&shared.bins[(key - range.low) >> shift], 1u);
      }
    });
    __syncthreads();
    FindBin(k, 1, shared);
    const uint32_t in_bin = shared.bins[shared.bin];
    const uint32_t bin_low = range.low + (shared.bin << shift);
    const uint32_t bin_high = bin_low + min((1u << shift) - 1, range.high - bin_low);
    k -= shared.above_bin;
    if (shift == 0) {
      if (threadIdx.x == 0) shared.kth = bin_low;
      break;
    }
    if (in_bin <= 32) {
      keys.ForEach([&](uint32_t key) {
        if (key >= bin_low && key <= bin_high)
          shared.ranked[atomicAdd(&shared.num_ranked, 1)] = key;
      });
      __syncthreads();
      if (threadIdx.x < 32) RankFew(k, shared);
      break;
    }
    range = {bin_low, bin_high};
    __syncthreads();
    ClearBins(shared);
    __syncthreads();
  }
  __syncthreads();
}

// The largest key that at least k keys of the row reach, bit by bit. For rows with many equal keys.
template <int kPerThread>
__device__ uint32_t BisectRow(const uint32_t (&keys)[kPerThread], uint32_t k,
                              cg::cluster_group& cluster, TopKShared& first_block) {
  uint32_t kth = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = kth | (1u << bit);
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) mine += keys[i] >= candidate;
    if (cluster.block_rank() == 0 && threadIdx.x == 0) first_block.count_of_row = 0;
    SyncRow(cluster);
    mine = __reduce_add_sync(~0u, mine);
    if (threadIdx.x % 32 == 0 && mine > 0) atomicAdd(&first_block.count_of_row, mine);
    SyncRow(cluster);
    if (static_cast<uint32_t>(first_block.count_of_row) >= k) kth = candidate;
    SyncRow(cluster);
  }
  return kth;
}

// Bitmaps of the keys above and equal to the k-th, in entry order.
template <int kPerThread>
__device__ void MarkChosen(const uint32_t (&keys)[kPerThread], uint32_t kth, TopKShared& shared) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (keys[i] < kth) continue;
    const int at = 4 * (i / 4 * kThreads + static_cast<int>(threadIdx.x)) + i % 4;
    uint32_t* const map = keys[i] > kth ? shared.above : shared.equal;
    atomicOr(&map[at / 32], 1u << (at % 32));
  }
}

// Counts of set bits before this thread's word, within the block; the block's totals go to
// shared.counts.
__device__ Counts CountBefore(Counts mine, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  // Fewer than k <= 1,024 lie above, at most 32,768 are equal: both fit one word.
  const uint32_t packed =
      static_cast<uint32_t>(mine.above) << 16 | static_cast<uint32_t>(mine.equal);
  uint32_t inclusive = packed;
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t before = __shfl_up_sync(~0u, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == 31) shared.warp_values[warp] = inclusive;
  __syncthreads();
  const uint32_t warps_before = __reduce_add_sync(~0u, lane < warp ? shared.warp_values[lane] : 0);
  const auto unpack = [](uint32_t both) {
    return Counts{static_cast<int>(both >> 16), static_cast<int>(both & 0xffffu)};
  };
  if (threadIdx.x == kThreads - 1) shared.counts = unpack(warps_before + inclusive);
  return unpack(warps_before + inclusive - packed);
}

// Writes the chosen of this thread's 32 entries. `before`: of the row, before these entries;
// `take`: how many keys equal to the k-th the row takes.
__device__ void StoreWord(int32_t* out, int first_entry, uint32_t above, uint32_t equal,
                          Counts before, int take) {
  int at = before.above + min(before.equal, take);
  int equal_left = take - before.equal;
  for (uint32_t left = above | equal; left != 0; left &= left - 1) {
    const uint32_t bit = left & (0u - left);
    if ((above & bit) == 0 && equal_left-- <= 0) continue;
    out[at++] = first_entry + __ffs(static_cast<int>(bit)) - 1;
  }
}

// A row with no more than k entries: all of them.
__device__ void StoreAll(int32_t* out, int visible, int k) {
  for (int i = threadIdx.x; i < k; i += kThreads) out[i] = i < visible ? i : -1;
}

// The k-th largest key of a row spread over a cluster.
template <int kPerThread>
__device__ uint32_t FindKthOfRow(const uint32_t (&keys)[kPerThread], uint32_t k,
                                 cg::cluster_group& cluster, TopKShared& shared) {
  const uint32_t num_blocks = cluster.num_blocks();
  TopKShared& first_block = *cluster.map_shared_rank(&shared, 0);
  FindBounds(keys, k, (k + num_blocks - 1) / num_blocks, shared);
  SyncRow(cluster);
  uint32_t bound = kNanKey;
  uint32_t share_bound = ~0u;
  for (uint32_t i = 0; i < num_blocks; ++i) {
    const TopKShared& block = *cluster.map_shared_rank(&shared, i);
    bound = max(bound, block.bound);
    share_bound = min(share_bound, block.share_bound);
  }
  SendSurvivors(keys, max(bound, share_bound), first_block);
  SyncRow(cluster);
  if (first_block.num_survivors > kMaxSurvivors) return BisectRow(keys, k, cluster, first_block);
  if (cluster.block_rank() == 0) SelectKth(Survivors{shared}, k, shared);
  SyncRow(cluster);
  return first_block.kth;
}

template <int kPerThread>
__global__ void __launch_bounds__(kThreads, 1) TopKKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared*>(smem);
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int num_blocks = static_cast<int>(cluster.num_blocks());
  shared.above[threadIdx.x] = 0;
  shared.equal[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.num_survivors = 0;
  WaitForPreviousKernel();
  AllowNextKernel();

  const int64_t row = blockIdx.x / num_blocks;
  const int first = rank * kThreads * kPerThread;
  int32_t* const out = args.top_entries + row * args.k;
  const int visible = args.num_visible[row];
  if (visible <= args.k) {  // the same for the whole cluster
    if (rank == 0) StoreAll(out, visible, args.k);
    return;
  }
  uint32_t keys[kPerThread];
  LoadKeys(args, row, first, visible, keys);
  uint32_t kth;
  if (kPerThread <= kMaxDirect && num_blocks == 1) {
    SelectKth(OwnKeys<kPerThread>{keys}, static_cast<uint32_t>(args.k), shared);
    kth = shared.kth;
  } else {
    kth = FindKthOfRow(keys, static_cast<uint32_t>(args.k), cluster, shared);
  }

  MarkChosen(keys, kth, shared);
  __syncthreads();
  const uint32_t above = shared.above[threadIdx.x];
  const uint32_t equal = shared.equal[threadIdx.x];
  Counts before = CountBefore({__popc(above), __popc(equal)}, shared);
  SyncRow(cluster);
  int total_above = 0;
  for (int i = 0; i < num_blocks; ++i) {
    const Counts counts = cluster.map_shared_rank(&shared, i)->counts;
    total_above += counts.above;
    if (i < rank) {
      before.above += counts.above;
      before.equal += counts.equal;
    }
  }
  StoreWord(out, first + 32 * static_cast<int>(threadIdx.x), above, equal, before,
            args.k - total_above);
  if (num_blocks > 1) cluster.sync();  // nobody leaves while its counts may be read
#endif
}

template <int kPerThread>
void LaunchTile(const TopKArgs& args, int cluster, cudaStream_t stream) {
  const auto kernel = TopKKernel<kPerThread>;
  constexpr int kSharedBytes = static_cast<int>(sizeof(TopKShared));
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  LaunchOverlapped(kernel,
                   {.blocks = args.num_rows * cluster,
                    .threads = kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = cluster},
                   stream, args);
}

}  // namespace

void LaunchTopK(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  RequireArgument(args.k >= 1 && args.k <= kMaxTopK, "LaunchTopK", "k is not in 1 .. 1024", args.k);
  RequireArgument(args.score_stride % 4 == 0, "LaunchTopK", "score_stride is no multiple of 4",
                  args.score_stride);
  if (args.num_rows == 0) return;
  if (args.max_visible > kMaxTopKEntries) return LaunchWideTopK(args, stream);
  RequireArgument(int64_t{kThreads} * tile.cluster * tile.per_thread >= args.max_visible,
                  "LaunchTopK", "max_visible exceeds the tile", args.max_visible);
  RequireArgument(tile.cluster >= 1 && tile.cluster <= kMaxCluster, "LaunchTopK",
                  "cluster is not in 1 .. 8", tile.cluster);
  switch (tile.per_thread) {
    case 4:
      return LaunchTile<4>(args, tile.cluster, stream);
    case 8:
      return LaunchTile<8>(args, tile.cluster, stream);
    case 16:
      return LaunchTile<16>(args, tile.cluster, stream);
    case 32:
      return LaunchTile<32>(args, tile.cluster, stream);
    default:
      RequireArgument(false, "LaunchTopK", "per_thread is none of 4, 8, 16, 32", tile.per_thread);
  }
}

}  // namespace lodestone::cuda

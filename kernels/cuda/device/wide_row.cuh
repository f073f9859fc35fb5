#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/score_key.cuh"
#include "kernels/cuda/launchers.h"

// How a cluster of kernels/cuda/top_k_wide.cu reads its row: the parts of the blocks, a bound that
// about k scores reach, and the way of those to the first block.
namespace lodestone::cuda::wide_top_k {

namespace cg = cooperative_groups;

constexpr int kCluster = 8;  // blocks of one row
constexpr int kHalf = 4;     // float4 of a thread that are loaded together
constexpr int kMaxRanked = 128;
constexpr int kWindow = 262144;  // entries put in order at one time

struct Tile {
  static constexpr int kThreads = 512;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSegment = 4 * kThreads;  // entries that a block reads in a row
  static constexpr int kSlots = 2 * kHalf;       // segments of a block and batch
  static constexpr int kGroups = 4;              // of a thread, whose maxima are counted
  static constexpr int kMaxima = 32 * kGroups;   // of a warp
  static constexpr int kMaxItems = 2816;
  static constexpr int kBins = kThreads;
  static constexpr int kBuckets = 2 * kThreads;
};

struct Bounds {
  uint32_t low;   // so many keys as the warp's share reach it
  uint32_t high;  // the largest key
};
struct TopKShared {
  float4 items[Tile::kMaxItems];  // of the row, that hold a candidate; the first block's are used
  int32_t entries[Tile::kMaxItems];  // their first entries
  uint32_t chosen[kWindow / 32];     // bitmap, first block
  uint32_t buckets[Tile::kBuckets];  // chosen per bucket of entries, then those before it
  uint32_t bins[Tile::kBins];
  uint64_t ranked[kMaxRanked];                // first block
  Bounds bounds[kCluster * Tile::kWarps];  // of all warps of the row
  uint32_t warp_values[Tile::kWarps];
  uint64_t kth;  // first block
  int num_items;
  bool listed;
  int num_ranked;
  uint32_t bin;
  uint32_t above_bin;
  uint32_t in_bin;
};

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
  static constexpr int size = kCluster;

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

// What one block reads of its row: of every batch and slot the segment
// (slot * kCluster + rank) * num_batches + batch.
struct RowPart {
  const float* scores;
  int visible;
  int rank;
  int num_batches;

  __device__ RowPart(const TopKArgs& args, int64_t row, int row_visible,
                     const BlockCluster& blocks)
      : scores(args.scores + row * args.score_stride),
        visible(row_visible),
        rank(blocks.rank) {
    constexpr int batch = Tile::kSegment * Tile::kSlots * kCluster;
    num_batches = (visible + batch - 1) / batch;
  }
  // First entry of this thread's float4 in a slot of a batch.
  __device__ int First(int batch, int slot) const {
    return ((slot * kCluster + rank) * num_batches + batch) * Tile::kSegment +
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
      at += kCluster * num_batches * Tile::kSegment;
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

__device__ inline float MaxOf(const float4& four) {
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}

// What StoreChosen marks the first `entries` entries in.
__device__ inline void ClearOrder(int entries, TopKShared& shared) {
  const int vectors = (min(entries, kWindow) + 127) / 128;
  for (int i = threadIdx.x; i < vectors; i += Tile::kThreads) {
    reinterpret_cast<uint4*>(shared.chosen)[i] = uint4{};
  }
  reinterpret_cast<uint2*>(shared.buckets)[threadIdx.x] = uint2{};
}

__device__ inline void ClearShared(int max_visible, TopKShared& shared) {
  ClearOrder(max_visible, shared);
  shared.bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.num_items = 0;
    shared.num_ranked = 0;
  }
}

// Of the maxima of the warp's groups of scores: a key that `share` of them reach, as large as a few
// halvings find, and the largest.
__device__ inline Bounds WarpBounds(const float4 (&a)[kHalf], const float4 (&b)[kHalf], int share) {
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
__device__ inline Bounds RowBounds(const RowPart& part, const float4 (&a)[kHalf],
                            const float4 (&b)[kHalf], int k, const BlockCluster& team,
                            TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = team.rank * Tile::kWarps + static_cast<int>(threadIdx.x) / 32;
  const int warps = team.size * Tile::kWarps;
  const int active = part.num_batches > 1 ? warps : min(warps, part.visible / 128);
  const int wanted =
      part.num_batches == 1 ? k : (5 * k + 2 * part.num_batches + 2) / (2 * part.num_batches + 3);
  const int share = active == 0 ? Tile::kMaxima + 1 : (wanted + active - 1) / active;
  Bounds bounds = {~0u, 0};
  if (warp < active && share <= Tile::kMaxima) bounds = WarpBounds(a, b, share);
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

// Copies the fours of the warp that hold a score from `bound` on to the first block. `first`: entry
// of fours[0]; `stride`: between two. num_items counts all; those beyond kMaxItems are not copied.
__device__ inline void SendItems(const float4 (&fours)[kHalf], int first, int stride, float bound,
                          TopKShared& first_block) {
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

}  // namespace lodestone::cuda::wide_top_k

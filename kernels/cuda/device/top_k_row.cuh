#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/score_key.cuh"
#include "kernels/cuda/launchers.h"

// What the blocks of kernels/cuda/top_k.cu share, and how they read their row.
namespace lodestone::cuda::top_k {

namespace cg = cooperative_groups;

struct Tile {
  static constexpr int kThreads = kTopKThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMaxCluster = kMaxTopKCluster;
  static constexpr int kSegment = 4 * kThreads;  // entries that a block reads in a row
  static constexpr int kGroups = 4;              // of a thread's scores, whose maxima are counted
  static constexpr int kWarpItems = 160;
  static constexpr int kMaxCandidates = 5120;  // of a row
  static constexpr int kBins = 256;
  static constexpr int kMaxRanked = 64;
  static constexpr int kWindow = 262144;  // entries put in order at one time
  static constexpr int kBuckets = 1024;   // of a window
  static constexpr int kOwnBuckets = kBuckets / kThreads;
  static_assert(kBins == 8 * 32 && kBins <= kThreads);
};

struct Candidate {
  float score;
  int32_t entry;  // -1: none, and the score is NaN
};

struct Bound {
  float bound;  // so many scores of a block as it was asked for reach it
  float low;    // where the candidates' bins begin
  float scale;  // bins of a range of 1
};

struct Bin {
  int number;
  uint32_t above;  // counted in the bins above it
  uint32_t count;  // 0: fewer than k were counted
};

struct TopKShared {
  union {
    struct {  // items: four scores next to each other of which one reaches the bound
      float4 items[Tile::kWarps][Tile::kWarpItems];
      int32_t item_entries[Tile::kWarps][Tile::kWarpItems];  // the first of the four
    };
    struct {
      uint32_t chosen[Tile::kWindow / 32];  // bitmap
      uint32_t buckets[Tile::kBuckets];     // chosen entries of each, then of those before it
    };
  };
  // First block: the row's scores that reach the bound. Number i of block b of n is at i * n + b.
  Candidate candidates[Tile::kMaxCandidates];
  int num_candidates[Tile::kMaxCluster];  // of each block, also what was not kept
  uint32_t bins[Tile::kBins];             // of the candidates
  uint32_t sample_bins[Tile::kBins];      // of this block's sample
  uint64_t ranked[Tile::kMaxRanked];      // rank keys
  Bound bounds[Tile::kMaxCluster];        // of all blocks of the row
  uint2 warp_ranges[Tile::kWarps];
  uint32_t warp_sums[Tile::kWarps];
  Bin bin;
  uint64_t kth;
  int num_sent;  // of this block
  int num_ranked;
  int listed;  // first block: the k-th is among the candidates
};

// The blocks of one row: one alone, or a cluster.
struct OneBlock {
  static constexpr int rank = 0;
  static constexpr int size = 1;
  __device__ TopKShared& Of(int, TopKShared& mine) const { return mine; }
  __device__ void Arrive() const {}
  __device__ void Wait() const {}
  __device__ void Sync() const { __syncthreads(); }
};
struct BlockCluster {
  cg::cluster_group cluster = cg::this_cluster();
  int rank = static_cast<int>(cluster.block_rank());
  int size = static_cast<int>(cluster.num_blocks());
  __device__ TopKShared& Of(int block, TopKShared& mine) const {
    return *cluster.map_shared_rank(&mine, block);
  }
  __device__ void Arrive() const { ClusterArrive(); }
  __device__ void Wait() const { ClusterWait(); }
  __device__ void Sync() const {
    Arrive();
    Wait();
  }
};

__device__ inline float MaxOf(const float4& four) {
  return fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
}
__device__ inline float MinOf(const float4& four) {
  return fminf(fminf(four.x, four.y), fminf(four.z, four.w));
}
__device__ inline float4 NoScores() {
  const float nan = __int_as_float(0x7fffffff);
  return {nan, nan, nan, nan};
}

// Rank keys are unique within a row; a larger one is chosen first.
__device__ inline uint64_t RankKey(float score, int entry) {
  return uint64_t{KeyOf(score)} << 32 | ~static_cast<uint32_t>(entry);
}

// What one block reads of its row: of every batch and slot one segment. Segments next to each other
// are of different batches, then of different blocks, so that each part of the reading sees all of
// the row. Of a short row not all blocks read. The last one to three entries of a row whose length
// is no multiple of four are its tail, and in no segment. A batch has `kSlots` segments of a block.
template <int kSlots>
struct RowPart {
  const float* scores;
  int visible;
  int in_fours;     // of them, those not in the tail; 0 if this block does not read
  int blocks;       // that read: a power of two
  int num_batches;  // of each
  int num_slots;    // of this block that hold entries
  int slot_stride;  // entries from a slot to the next
  int first;        // entry of this thread's float4 in slot 0 of batch 0

  template <typename Team>
  __device__ RowPart(const TopKArgs& args, int64_t row, int row_visible, const Team& team)
      : scores(args.scores + row * args.score_stride), visible(row_visible), blocks(team.size) {
    while (blocks > 1 && visible < blocks * Tile::kGroups * Tile::kSegment) blocks /= 2;
    const int of_slot = blocks * Tile::kSegment;
    num_batches = 1;
    if (visible > kSlots * of_slot) {
      num_batches = (visible + kSlots * of_slot - 1) / (kSlots * of_slot);
    }
    num_slots = num_batches > 1 ? kSlots : (visible + of_slot - 1) / of_slot;
    slot_stride = of_slot * num_batches;
    first = team.rank * num_batches * Tile::kSegment + 4 * static_cast<int>(threadIdx.x);
    in_fours = team.rank < blocks ? visible & ~3 : 0;
  }
  __device__ int First(int batch, int slot) const {
    return first + batch * Tile::kSegment + slot * slot_stride;
  }
  // Nothing depends on whether there are entries, so that many loads are on their way together:
  // where there are none, it loads others.
  __device__ float4 Load(int batch, int slot) const {
    const int at = max(min(First(batch, slot), in_fours - 4), 0);
    return __ldg(reinterpret_cast<const float4*>(scores + at));
  }
  __device__ bool Holds(int batch, int slot) const { return First(batch, slot) < in_fours; }
  __device__ float4 LoadTail() const {
    const int at = visible & ~3;
    float4 four = NoScores();
    if (at < visible) four.x = scores[at];
    if (at + 1 < visible) four.y = scores[at + 1];
    if (at + 2 < visible) four.z = scores[at + 2];
    return four;
  }
  // f(score, entry) of all entries of this block, read again.
  template <typename F>
  __device__ void ForEach(const F& f) const {
    const auto visit = [&](const float4& four, int entry) {
      if (entry < visible) f(four.x, entry);
      if (entry + 1 < visible) f(four.y, entry + 1);
      if (entry + 2 < visible) f(four.z, entry + 2);
      if (entry + 3 < visible) f(four.w, entry + 3);
    };
    for (int i = 0; i < num_batches * num_slots; ++i) {
      const int batch = i / num_slots;
      const int slot = i % num_slots;
      if (Holds(batch, slot)) visit(Load(batch, slot), First(batch, slot));
    }
    if (first == 0) visit(LoadTail(), visible & ~3);
  }
};

}  // namespace lodestone::cuda::top_k

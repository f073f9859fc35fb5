#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/score_key.cuh"
#include "kernels/cuda/launchers.h"

// What the blocks of kernels/cuda/top_k.cu share, and how they read their row.
namespace lodestone::cuda::top_k {

namespace cg = cooperative_groups;

struct Tile {
  static constexpr int kThreads = kTopKThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMaxCluster = kMaxTopKCluster;
  static constexpr int kMinOfBlock = 4096;     // entries; with fewer, fewer blocks read the row
  static constexpr int kGroups = 4;            // of a thread's scores, whose maxima are counted
  static constexpr int kWarpItems = 168;       // of a warp
  static constexpr int kMaxCandidates = 5120;  // of a row
  static constexpr int kRounds = kMaxCandidates / kThreads;
  static constexpr int kBins = 256;
  static constexpr int kMaxRanked = 64;
  static constexpr int kWarpScores = kMaxHeldTopK / kWarps;  // of a row that is held
  // Of such a row: candidates of a warp that are selected from where they are, and of all warps
  // that are otherwise put together.
  static constexpr int kMaxListed = 256;
  static constexpr int kMaxGathered = 3072;
  static_assert(kMaxGathered % (2 * kThreads) == 0, "StoreFromList reads two rounds at a time");
  static_assert(kRounds % 2 == 0);
  static_assert(kBins == 8 * 32 && kBins <= kThreads && kWarps <= 32);
};

struct alignas(8) Candidate {
  float score;
  int32_t entry;
};

struct Bound {
  float bound;  // at least k scores of the row reach it, if the sample is the row
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
    struct {
      union {
        struct {  // items: four scores next to each other of which one reaches the bound
          float4 items[Tile::kWarps][Tile::kWarpItems];
          int32_t item_entries[Tile::kWarps][Tile::kWarpItems];  // the first of the four
        };
        // First block of a cluster: the row's candidates.
        Candidate ordered[Tile::kMaxCandidates];
      };
      // The row's scores that reach the bound, in order; in the first block of a cluster as they
      // arrive, an equal part for each block.
      Candidate candidates[Tile::kMaxCandidates];
    };
    struct {                                            // for rows that are held
      uint16_t lists[Tile::kWarps][Tile::kWarpScores];  // candidates, by their number in the piece
      Candidate gathered[Tile::kMaxGathered];
    };
  };
  uint32_t bins[Tile::kBins];         // of the candidates
  uint32_t sample_bins[Tile::kBins];  // of this block's sample
  uint64_t ranked[Tile::kMaxRanked];  // rank keys
  uint2 warp_ranges[Tile::kWarps];
  uint2 warp_counts[Tile::kWarps];  // scores above and equal to the pivot
  uint32_t warp_sums[Tile::kWarps];
  uint32_t round_sums[Tile::kRounds / 2][Tile::kWarps];  // chosen, of two rounds each
  float bounds[Tile::kMaxCluster];                       // of the blocks of the row
  Bin bin;
  float pivot;  // below the k-th or perhaps the k-th, of a row that is selected from as a whole
  uint64_t kth;
  int num_sent;  // of this block
  int num_ranked;
  // Of a cluster:
  uint64_t bounds_barrier;
  uint64_t lists_barrier;    // first block: all warps of all blocks have sent
  uint64_t verdict_barrier;  // the other blocks: `found` is there
  float found;               // not 0: the k-th is among the candidates
  // First block: what each warp has sent, in the order of the pieces: the place of its first in
  // its block's part of `candidates`, and 65,536 times their number.
  alignas(16) uint32_t runs[Tile::kWarps * Tile::kMaxCluster];
};

// The blocks of one row: one alone, or a cluster.
struct OneBlock {
  static constexpr bool kAlone = true;
  static constexpr int rank = 0;
  static constexpr int size = 1;
  __device__ TopKShared& Of(int, TopKShared& mine) const { return mine; }
  __device__ void Arrive() const {}
  __device__ void Wait() const {}
  __device__ void Sync() const { __syncthreads(); }
  __device__ void Init(int, TopKShared&) const {}
  __device__ void ShareBound(float bound, int, TopKShared& shared) const {
    if (threadIdx.x == 0) shared.bounds[0] = bound;
  }
  __device__ void WaitForBounds(TopKShared&) const { __syncthreads(); }
};

// Each word that one block tells another is stored there together with what counts for a barrier,
// so that it takes one way and no answer. Barriers of the whole cluster, which take both ways, are
// at the begin, where nobody waits for them, and for rows that are read again.
struct BlockCluster {
  static constexpr bool kAlone = false;
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
  // By one thread, before Arrive; `blocks` of the cluster read the row.
  __device__ void Init(int blocks, TopKShared& shared) const {
    BarrierInit(&shared.bounds_barrier, 1);
    BarrierInit(&shared.lists_barrier, Tile::kWarps * blocks);
    BarrierInit(&shared.verdict_barrier, 1);
    BarrierInitFence();
    BarrierArriveExpect(&shared.bounds_barrier, static_cast<uint32_t>(blocks) * sizeof(float));
    BarrierArriveExpect(&shared.verdict_barrier, sizeof(float));
  }
  // By a warp: to all blocks that read the row.
  __device__ void ShareBound(float bound, int blocks, TopKShared& shared) const {
    const int lane = threadIdx.x % 32;
    if (lane >= blocks) return;
    StoreAsync(ClusterAddress(&shared.bounds[rank], lane), bound,
               ClusterAddress(&shared.bounds_barrier, lane));
  }
  __device__ void WaitForBounds(TopKShared& shared) const {
    BarrierWaitCluster(&shared.bounds_barrier, 0);
  }
  // By a warp of the first block: whether the k-th is among the candidates.
  __device__ void ShareVerdict(bool found, TopKShared& shared) const {
    const int lane = threadIdx.x % 32;
    if (lane == 0 || lane >= size) return;
    StoreAsync(ClusterAddress(&shared.found, lane), found ? 1.0f : 0.0f,
               ClusterAddress(&shared.verdict_barrier, lane));
  }
  __device__ bool WaitForVerdict(TopKShared& shared) const {
    BarrierWaitCluster(&shared.verdict_barrier, 0);
    return shared.found != 0;
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

// What one warp reads of its row: a piece of it, from front to back. A slot is 32 float4 next to
// each other, a batch kSlots slots. Pieces next to each other are of different blocks. Of a short
// row not all blocks read. The last one to three entries of a row whose length is no multiple of
// four, its tail, come after the last piece.
template <int kSlots>
struct RowPart {
  const float* scores;
  int visible;
  int fours;   // complete ones of the row
  int blocks;  // that read: a power of two
  int length;  // of a piece, in float4
  int num_batches;
  int first;  // float4 of this lane in slot 0
  int end;    // of the piece, in float4
  bool last;  // this warp has the last piece

  template <typename Team>
  __device__ RowPart(const TopKArgs& args, int64_t row, int row_visible, const Team& team)
      : scores(args.scores + row * args.score_stride),
        visible(row_visible),
        fours(row_visible / 4),
        blocks(team.size) {
    while (blocks > 1 && visible < blocks * Tile::kMinOfBlock) blocks /= 2;
    const int pieces = blocks * Tile::kWarps;
    const int piece = static_cast<int>(threadIdx.x) / 32 * blocks + team.rank;
    const bool reads = team.rank < blocks;
    length = ((fours + pieces - 1) / pieces + 7) / 8 * 8;  // whole lines of the cache
    num_batches = max((length + 32 * kSlots - 1) / (32 * kSlots), 1);
    first = piece * length + static_cast<int>(threadIdx.x) % 32;
    end = reads ? min((piece + 1) * length, fours) : 0;
    last = reads && piece == pieces - 1;
  }
  __device__ int At(int batch, int slot) const { return first + 32 * (batch * kSlots + slot); }
  // Nothing depends on whether there are entries, so that many loads are on their way together:
  // where there are none, it loads others, until DropOthers.
  __device__ float4 Load(int batch, int slot) const { return LoadBefore(fours, At(batch, slot)); }
  __device__ void DropOthers(int batch, float4 (&loaded)[kSlots]) const {
    const int lane = threadIdx.x % 32;
    if (At(batch, kSlots) - lane <= end) return;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (At(batch, i) >= end) loaded[i] = NoScores();
    }
  }
  __device__ float4 LoadBefore(int limit, int at) const {
    return __ldg(reinterpret_cast<const float4*>(scores) + max(min(at, limit - 1), 0));
  }
  __device__ float4 LoadTail() const {
    const int at = 4 * fours;
    float4 four = NoScores();
    if (at < visible) four.x = scores[at];
    if (at + 1 < visible) four.y = scores[at + 1];
    if (at + 2 < visible) four.z = scores[at + 2];
    return four;
  }
  // The second batch to the L2 cache, while the first is worked on.
  __device__ void Prefetch() const {
    if (num_batches == 1 || threadIdx.x % 32 != 0) return;
    const int from = At(1, 0);
    const int count = min(32 * kSlots, end - from);
    if (count > 0) PrefetchBulk(scores + 4 * from, 16 * static_cast<uint32_t>(count));
  }
  // f(score, entry) of all entries of this warp, read again.
  template <typename F>
  __device__ void ForEach(const F& f) const {
    const auto visit = [&](const float4& four, int entry) {
      if (entry < visible) f(four.x, entry);
      if (entry + 1 < visible) f(four.y, entry + 1);
      if (entry + 2 < visible) f(four.z, entry + 2);
      if (entry + 3 < visible) f(four.w, entry + 3);
    };
    constexpr int kBatch = 8;  // on their way together
#pragma unroll 1
    for (int at = first; at < end; at += 32 * kBatch) {
      float4 loaded[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) loaded[i] = LoadBefore(end, at + 32 * i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + 32 * i < end) visit(loaded[i], 4 * (at + 32 * i));
      }
    }
    if (last && threadIdx.x % 32 == 0) visit(LoadTail(), 4 * fours);
  }
};

}  // namespace lodestone::cuda::top_k

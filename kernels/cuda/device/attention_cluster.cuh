#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/sparse_attention.h"

// What a thread block of sparse_attention_cluster.cu keeps in shared memory, and how it gets there.
namespace lodestone::cuda {

template <int kClusterHeads, int kClusterBlocks>
struct ClusterTile {
  static constexpr int kHeads = kClusterHeads;
  static constexpr int kBlocks = kClusterBlocks;
  static constexpr int kMaxSteps = MaxClusterSteps({kHeads, kBlocks});
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kSlices = kDims / 64;
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kBlockDims = kDims / kBlocks;
  static constexpr int kValueRowBytes = 2 * kBlockDims;
  static constexpr int kRopeDims = kAttentionRopeDims;
  static constexpr int kStepsEach = (kMaxSteps + kBlocks - 1) / kBlocks;
  static constexpr int kPieces = 2;  // of a step's dims: scores begin with the first
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 2 * kGroupThreads;
  static_assert(kBlockDims == 32 || kBlockDims == 64, "a value row of 64 or 128 bytes");
  static_assert(kHeads == 16 || kHeads == 32 || kHeads == 64);
  static_assert(kStepsEach <= 2);
};

inline constexpr int kSharedPages = 768;  // of the block table

template <typename Tile>
struct alignas(1024) ClusterShared {
  union {
    uint8_t keys[Tile::kStepsEach][Tile::kSlices][Tile::kSliceBytes];
    struct {  // once all blocks have their scores
      StepResults<Tile::kHeads, Tile::kMaxSteps> results;
      StepResults<Tile::kHeads, Tile::kStepsEach> own_results;  // copied from here
    };
  };
  union {
    // Until it is in registers.
    alignas(1024) uint8_t query[Tile::kSlices][Tile::kHeads * 128];
    uint8_t values[Tile::kMaxSteps][Tile::kKeys * Tile::kValueRowBytes];  // this block's dims
  };
  const uint8_t* rows[Tile::kMaxSteps * Tile::kKeys];
  int32_t pages[kSharedPages];
  float inverse[Tile::kHeads];  // 1 / denominator
  float2 angles[Tile::kBlockDims / 2];
  uint64_t query_full;
  uint64_t query_taken;
  uint64_t keys_full[Tile::kStepsEach][Tile::kPieces];
  uint64_t values_full;
  uint64_t results_full;
};
static_assert(sizeof(ClusterShared<ClusterTile<32, 16>>) <= 227 * 1024);
static_assert(sizeof(ClusterShared<ClusterTile<64, 16>>) <= 227 * 1024);
static_assert(sizeof(ClusterShared<ClusterTile<16, 8>>) <= 227 * 1024);
static_assert(sizeof(ClusterShared<ClusterTile<64, 8>>) <= 227 * 1024);

struct ClusterWork {
  int64_t token;
  int head;  // first
  int rank;  // of this block
};
template <typename Tile>
__device__ inline ClusterWork FindWork(const SparseAttentionArgs& args) {
  const int cluster = static_cast<int>(blockIdx.x) / Tile::kBlocks;
  const int head_groups = static_cast<int>(args.num_heads + Tile::kHeads - 1) / Tile::kHeads;
  return {.token = cluster / head_groups,
          .head = cluster % head_groups * Tile::kHeads,
          .rank = static_cast<int>(RankInCluster())};
}

// The sinks of rows r and r + 8 of this thread; rows beyond kHeads repeat the first ones.
template <typename Tile>
__device__ inline void LoadSinks(const SparseAttentionArgs& args, int first_head,
                                 float (&sink)[2]) {
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = first_head + (row + 8 * j) % Tile::kHeads;
    sink[j] = head < args.num_heads ? args.sink[head] : -INFINITY;
  }
}

// The entries from number `first` on, every kStride-th, -1 where there is none: the chosen ones, or
// all.
template <int kStride, int kCount>
__device__ inline void LoadEntries(const SparseAttentionArgs& args, int64_t token,
                                   const TokenKeys& keys, int first, int32_t (&entries)[kCount]) {
  const int32_t* const chosen = args.top_entries + token * args.k;
  const int count = args.ratio == 4 ? static_cast<int>(args.k) : keys.num_entries;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = first + i * kStride;
    const bool present = at >= 0 && at < count;
    entries[i] = present ? at : -1;
    if (present && args.ratio == 4) entries[i] = chosen[at];
  }
}

// The token's row of the block table, its beginning in shared memory: what was read before
// WaitForPreviousKernel() is no longer in the L1 cache behind it.
struct PageTable {
  const int32_t* all;
  const int32_t* shared;
  __device__ int64_t Page(int number) const {
    return number < kSharedPages ? shared[number] : all[number];
  }
};
// A thread's part of that beginning. By kThreads threads.
template <int kThreads>
using LoadedPages = int32_t[kSharedPages / kThreads];
template <int kEach>
__device__ inline void LoadPages(const SparseAttentionArgs& args, int32_t seq,
                                 int32_t (&pages)[kEach]) {
  constexpr int kThreads = kSharedPages / kEach;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < args.max_pages) pages[i] = args.block_table[seq * args.max_pages + at];
  }
}
// Stores what was loaded for the likely sequence, or the other's.
template <int kEach>
__device__ inline PageTable StorePages(const SparseAttentionArgs& args, int64_t token,
                                       const TokenKeys& keys, int32_t (&pages)[kEach],
                                       int32_t* shared) {
  constexpr int kThreads = kSharedPages / kEach;
  if (keys.seq != LikelySequence(args, token)) LoadPages(args, keys.seq, pages);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < args.max_pages) shared[at] = pages[i];
  }
  return {args.block_table + keys.seq * args.max_pages, shared};
}
template <int kThreads>
__device__ inline PageTable LoadPageTable(const SparseAttentionArgs& args, int64_t token,
                                          const TokenKeys& keys, int32_t* shared) {
  LoadedPages<kThreads> pages;
  LoadPages(args, LikelySequence(args, token), pages);
  return StorePages(args, token, keys, pages, shared);
}
__device__ inline const uint8_t* FindEntryLatent(const SparseAttentionArgs& args,
                                                 const PageTable& pages, int entry) {
  const int shift = args.ratio == 4 ? 6 : 1;  // of 64 or 2 entries a page
  return args.entries.payload + pages.Page(entry >> shift) * args.entries.payload_block_stride +
         (entry & ((1 << shift) - 1)) * kLatentBytes;
}

// What a thread copies of a block's steps: bytes 16 (thread % 8) .. + 15 of all slices of rows
// thread / 8 + kStride i of each; null where there is no key.
template <typename Tile>
struct OwnRows {
  static constexpr int kStride = Tile::kThreads / 8;
  static constexpr int kCount = Tile::kKeys / kStride;
  const uint8_t* from[Tile::kStepsEach][kCount];
};
template <typename Tile>
__device__ inline OwnRows<Tile> FindOwnRows(const SparseAttentionArgs& args, int64_t token,
                                            int rank, const TokenKeys& keys,
                                            const PageTable& pages) {
  using Rows = OwnRows<Tile>;
  int32_t entries[Tile::kStepsEach][Rows::kCount];
  const auto first = [&](int turn) {
    return (rank + turn * Tile::kBlocks) * Tile::kKeys + static_cast<int>(threadIdx.x) / 8;
  };
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
    LoadEntries<Rows::kStride>(args, token, keys, first(turn) - keys.num_window, entries[turn]);
  }
  Rows rows;
#pragma unroll
  for (int turn = 0; turn < Tile::kStepsEach; ++turn) {
#pragma unroll
    for (int i = 0; i < Rows::kCount; ++i) {
      const int index = first(turn) + i * Rows::kStride;
      const int entry = entries[turn][i];
      rows.from[turn][i] = nullptr;
      if (index < keys.num_window) rows.from[turn][i] = FindWindowLatent(args, keys, index);
      if (entry >= 0) rows.from[turn][i] = FindEntryLatent(args, pages, entry);
    }
  }
  return rows;
}
// All dims of the keys of one of a block's steps, piece by piece. By all threads.
template <typename Tile, int kPiece = 0>
__device__ inline void LoadOwnRows(const uint8_t* const (&from)[OwnRows<Tile>::kCount],
                                   uint8_t* keys, uint64_t* full) {
  if constexpr (kPiece < Tile::kPieces) {
    constexpr int kPieceSlices = Tile::kSlices / Tile::kPieces;
    const int thread = static_cast<int>(threadIdx.x);
    const int unit = thread % 8;
    const uint32_t to = SharedAddress(keys) + thread / 8 * 128 + (unit ^ (thread / 8 % 8)) * 16;
#pragma unroll
    for (int i = 0; i < OwnRows<Tile>::kCount; ++i) {
      if (from[i] == nullptr) continue;
      CopyLatentSlices<(kPiece + 1) * kPieceSlices, kPiece * kPieceSlices>(
          from[i] + unit * 16, to + i * OwnRows<Tile>::kStride * 128, kEvictFirst);
    }
    CopyAsyncArrive(&full[kPiece]);
    LoadOwnRows<Tile, kPiece + 1>(from, keys, full);
  }
}

// Lists the rows of all keys. By kListThreads threads, kFirst the first of them; entry i of
// `entries` is number thread + kListThreads i, -1 where there is none.
template <int kListThreads, int kFirst = 0, int kCount>
__device__ inline void ListRows(const SparseAttentionArgs& args, const TokenKeys& keys,
                                const PageTable& pages, const int32_t (&entries)[kCount],
                                const uint8_t** rows) {
  const int thread = (static_cast<int>(threadIdx.x) - kFirst) % kListThreads;
  for (int i = thread; i < keys.num_window; i += kListThreads) {
    rows[i] = FindWindowLatent(args, keys, i);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (entries[i] < 0) continue;
    rows[keys.num_window + thread + i * kListThreads] = FindEntryLatent(args, pages, entries[i]);
  }
}

// The token's keys, window and entries. Chosen entries are counted by a warp, in two looks: at the
// last of every part, which LoadPartEnd begins, then, if some are missing, into the first such
// part.
inline constexpr int kCountPart = kMaxTopK / 32;
__device__ inline int32_t LoadPartEnd(const SparseAttentionArgs& args, int64_t token) {
  if (args.ratio != 4) return 0;
  const int last = (static_cast<int>(threadIdx.x % 32) + 1) * kCountPart - 1;
  return args.top_entries[token * args.k + min(last, static_cast<int>(args.k) - 1)];
}
__device__ inline int CountKeys(const SparseAttentionArgs& args, int64_t token,
                                const TokenKeys& keys, int32_t part_end) {
  if (args.ratio != 4) return keys.size();
  const int full_parts = __popc(__ballot_sync(~0u, part_end >= 0));
  if (full_parts == 32) return keys.num_window + static_cast<int>(args.k);
  const int at = full_parts * kCountPart + static_cast<int>(threadIdx.x % 32);
  const bool present = at < args.k && args.top_entries[token * args.k + at] >= 0;
  return keys.num_window + full_parts * kCountPart + __popc(__ballot_sync(~0u, present));
}

// The row of key `index`; the first one for a missing key, whose probability is 0.
__device__ inline const uint8_t* RowOf(const uint8_t* const* rows, int num_keys, int index) {
  return rows[index < num_keys ? index : 0];
}

// This block's dims of all keys, by the second warpgroup.
template <typename Tile>
__device__ inline void LoadValues(int num_keys, int num_steps, int rank,
                                  ClusterShared<Tile>& shared) {
  constexpr int kUnits = Tile::kValueRowBytes / 16;  // of a row
  constexpr int kRowsOfSwizzle = 8 / kUnits;         // that share one turn of it
  const int thread = static_cast<int>(threadIdx.x % Tile::kGroupThreads);
  const int unit = thread % kUnits;
#pragma unroll 8
  for (int key = thread / kUnits; key < num_steps * Tile::kKeys;
       key += Tile::kGroupThreads / kUnits) {
    const uint32_t to = SharedAddress(shared.values) + key * Tile::kValueRowBytes +
                        (unit ^ (key / kRowsOfSwizzle % kUnits)) * 16;
    CopyAsync16<0, 0>(to,
                      RowOf(shared.rows, num_keys, key) + rank * Tile::kValueRowBytes + unit * 16,
                      kEvictFirst);
  }
  CopyAsyncArrive(&shared.values_full);
}

}  // namespace lodestone::cuda

#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/sparse_attention.h"

// What a thread block of sparse_attention_cluster.cu keeps in shared memory, and how it gets there.
namespace lodestone::cuda {

template <int kClusterHeads, int kClusterBlocks>
struct ClusterTile {
  static constexpr int kHeads = kClusterHeads;
  static constexpr int kBlocks = kClusterBlocks;
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kSlices = kDims / 64;
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kBlockDims = kDims / kBlocks;
  static constexpr int kValueRowBytes = 2 * kBlockDims;
  static constexpr int kRopeDims = kAttentionRopeDims;
  static constexpr int kMaxSteps = MaxClusterSteps({kHeads, kBlocks});
  static constexpr int kStepsEach = 2;
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 2 * kGroupThreads;
  static constexpr int kEntriesPerThread = kMaxTopK / kThreads;
  static_assert(kBlockDims == 32 || kBlockDims == 64, "a value row of 64 or 128 bytes");
  static_assert(kHeads == 16 || kHeads == 32 || kHeads == 64);
  static_assert(kMaxSteps <= kStepsEach * kBlocks);
};

template <typename Tile>
struct alignas(1024) ClusterShared {
  union {
    struct {
      uint8_t keys[Tile::kStepsEach][Tile::kSlices][Tile::kSliceBytes];
    } scoring;
    struct {
      uint8_t first_keys[Tile::kSlices][Tile::kSliceBytes];
      uint8_t query[Tile::kSlices][Tile::kHeads * 128];  // until it is in registers
    } begin;
    StepResult<Tile::kHeads> results[Tile::kMaxSteps];  // once all blocks have their scores
  };
  uint8_t values[Tile::kMaxSteps]
                [Tile::kKeys * Tile::kValueRowBytes];  // this block's dims of all keys
  const uint8_t* rows[Tile::kMaxSteps * Tile::kKeys];
  JoinedStats<Tile::kHeads, Tile::kMaxSteps> joined;
  float2 angles[Tile::kBlockDims / 2];
  uint64_t query_full;
  uint64_t query_taken;
  uint64_t keys_full[Tile::kStepsEach];
  uint64_t values_full;
  uint64_t results_full;
};
static_assert(sizeof(ClusterShared<ClusterTile<16, 16>>) <= 227 * 1024);
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

// Lists the rows of all keys and returns their number. By all threads; `keys` is what FindKeys
// gave.
template <typename Tile>
__device__ inline int ListRows(const SparseAttentionArgs& args, int64_t token, TokenKeys keys,
                               const uint8_t** rows) {
  const int thread = static_cast<int>(threadIdx.x);
  int32_t entries[Tile::kEntriesPerThread];
#pragma unroll
  for (int i = 0; i < Tile::kEntriesPerThread; ++i) {
    const int at = thread + i * Tile::kThreads;
    entries[i] = args.ratio == 4 && at < args.k ? args.top_entries[token * args.k + at] : -1;
  }
  const int32_t* const pages = args.block_table + keys.seq * args.max_pages;
#pragma unroll
  for (int i = 0; i < Tile::kEntriesPerThread; ++i) {
    if (entries[i] < 0) continue;
    rows[keys.num_window + thread + i * Tile::kThreads] =
        args.entries.payload + EntryLatentOffset(args, pages, entries[i]);
  }
  for (int i = thread; i < keys.num_window; i += Tile::kThreads) {
    rows[i] = FindWindowLatent(args, keys, i);
  }
  for (int i = thread; i < keys.num_entries; i += Tile::kThreads) {
    rows[keys.num_window + i] = args.entries.payload + EntryLatentOffset(args, pages, i);
  }
#pragma unroll
  for (int i = 0; i < Tile::kEntriesPerThread; ++i) {
    if (args.ratio == 4 && i * Tile::kThreads < args.k) {
      keys.num_entries += __syncthreads_count(entries[i] >= 0);
    }
  }
  __syncthreads();
  return keys.size();
}

// The row of key `index`; the first one for a missing key, whose probability is 0.
__device__ inline const uint8_t* RowOf(const uint8_t* const* rows, int num_keys, int index) {
  return rows[index < num_keys ? index : 0];
}

// All dims of the keys of one step, by kCopyThreads threads, which arrive at `full`. Thread t has
// bytes 16 (t % 8) .. + 15 of all slices of rows t / 8 + kCopyThreads / 8 i.
template <int kCopyThreads>
__device__ inline void LoadKeys(const uint8_t* const* rows, int num_keys, int step, uint64_t policy,
                                uint8_t* keys, uint64_t* full) {
  const int thread = static_cast<int>(threadIdx.x) % kCopyThreads;
  const int first_row = thread / 8;
  const int unit = thread % 8;
  const uint32_t to = SharedAddress(keys) + (unit ^ (first_row % 8)) * 16;
#pragma unroll
  for (int i = 0; i < kAttentionKeys; i += kCopyThreads / 8) {
    const int row = first_row + i;
    CopyLatentSlices(RowOf(rows, num_keys, step * kAttentionKeys + row) + unit * 16, to + row * 128,
                     policy);
  }
  CopyAsyncArrive(full);
}

// This block's dims of all keys, by the second warpgroup.
template <typename Tile>
__device__ inline void LoadValues(int num_keys, int num_steps, int rank,
                                  ClusterShared<Tile>& shared) {
  constexpr int kUnits = Tile::kValueRowBytes / 16;  // of a row
  constexpr int kRowsOfSwizzle = 8 / kUnits;         // that share one turn of it
  const int thread = static_cast<int>(threadIdx.x % Tile::kGroupThreads);
  const int unit = thread % kUnits;
#pragma unroll 4
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

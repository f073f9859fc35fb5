#pragma once

#include <cstdint>

#include "kernels/cuda/launchers.h"

// How the index scores kernel divides its work: the key tiles of all tokens, in order, are cut into
// one equal range per thread block. Some processors read faster than others, so where a block would
// have many tiles only the first part of them is cut so, and blocks draw tickets for the rest
// (index_ticket.cuh).
namespace lodestone::cuda {

constexpr int kTileEntries = 64;  // of a page at ratio 4

// Adjacent tokens of one sequence that share key tiles. A group of two starts at an even token.
struct TokenGroup {
  int tokens;
  int tiles;
};

// One block's range of tiles, and what tickets deal: the tiles [dealt, total) of all tokens.
struct IndexShare {
  int first_token;
  int first_seq;   // its row of the block table
  int first_tile;  // of that token
  int64_t num_tiles;
  int64_t dealt;
  int64_t total;
};

// How many of `total` tiles are cut into equal ranges; the others are dealt, if the launch can.
template <int kThreads>
__device__ int64_t FixedTiles(const IndexScoresArgs& args, bool deals, int64_t total) {
  constexpr int64_t kManyTiles = 64;      // of a block
  constexpr int64_t kMaxTiles = 1 << 30;  // fit the table of TileTable
  const bool many = total >= kManyTiles * gridDim.x && total <= kMaxTiles;
  return deals && many && args.num_tokens < kThreads ? total / 4 : total;
}

// REQUIRES: a group of up to kTokens starts at `token`.
template <int kTokens>
__device__ TokenGroup GroupAt(const IndexScoresArgs& args, int64_t token) {
  TokenGroup group{1, (args.num_visible[token] + kTileEntries - 1) / kTileEntries};
  if constexpr (kTokens == 2) {
    if (token % 2 == 0 && token + 1 < args.num_tokens &&
        args.token_seq[token] == args.token_seq[token + 1]) {
      const int next_tiles = (args.num_visible[token + 1] + kTileEntries - 1) / kTileEntries;
      group = {2, max(group.tiles, next_tiles)};
    }
  }
  return group;
}

// Tiles of the group that starts at `token`; 0 if none starts there.
template <int kTokens>
__device__ int TilesStartingAt(const IndexScoresArgs& args, int64_t token) {
  if constexpr (kTokens == 2) {
    if (token % 2 == 1 && args.token_seq[token] == args.token_seq[token - 1]) return 0;
  }
  return GroupAt<kTokens>(args, token).tiles;
}

// The tiles before each token and its sequence, where tiles are dealt: a thread has one token then.
template <int kThreads>
struct TileTable {
  int tiles_before[kThreads];
  int seqs[kThreads];
};

// This block's share where there are at most 32 tokens, which each warp finds on its own: a launch
// reads nothing before. Lane i is token i.
template <int kTokens>
struct WarpTokens {
  static constexpr int kManyTiles = 16;  // of a block: many more than a token's start lasts
  int tiles = 0;
  int seq = 0;
  uint32_t portion;  // of 2^32, a block's

  __device__ explicit WarpTokens(const IndexScoresArgs& args) {
    const int lane = threadIdx.x % 32;
    if (lane < args.num_tokens && args.num_tokens <= 32) {
      seq = args.token_seq[lane];
      tiles = TilesStartingAt<kTokens>(args, lane);
    }
    portion = ~0u / gridDim.x;
  }
  template <int kThreads, int kStartTiles>
  __device__ IndexShare Share(const IndexScoresArgs& args, bool deals) const {
    const int inclusive = TilesUpTo();
    const int before = inclusive - tiles;
    const int total = __shfl_sync(~0u, inclusive, 31);
    const int fixed = static_cast<int>(FixedTiles<kThreads>(args, deals, total));
    const int lane = threadIdx.x % 32;
    // A token's start counts as kStartTiles, so that blocks with two tokens end with the others.
    const int start =
        kStartTiles > 0 && total >= kManyTiles * static_cast<int>(gridDim.x) ? kStartTiles : 0;
    const uint32_t any = __ballot_sync(~0u, tiles > 0);
    const int begins = before + __popc(any & ((1u << lane) - 1)) * start;
    const uint32_t cut = fixed + __popc(any) * start;
    // block * cut / blocks, nearly: a division once lengths are known would take longer.
    const auto first_of = [&](uint32_t block) {
      return static_cast<int>(block == gridDim.x ? cut : __umulhi(block * portion, cut));
    };
    const auto token_at = [&](int position) {
      return max(31 - __clz(__ballot_sync(~0u, tiles > 0 && begins <= position)), 0);
    };
    // The tiles before `position`.
    const auto tiles_before = [&](int position, int token) {
      const int here = max(position - __shfl_sync(~0u, begins, token) - start, 0);
      return __shfl_sync(~0u, before, token) + here;
    };
    const int position = first_of(blockIdx.x);
    const int end_position = first_of(blockIdx.x + 1);
    const int token = token_at(position);
    const int first = tiles_before(position, token);
    const int end = tiles_before(end_position, token_at(end_position));
    return {token,
            __shfl_sync(~0u, seq, token),
            first - __shfl_sync(~0u, before, token),
            end - first,
            fixed,
            total};
  }
  template <int kThreads>
  __device__ void Fill(TileTable<kThreads>& table) const {
    const int inclusive = TilesUpTo();
    table.tiles_before[threadIdx.x % 32] = inclusive - tiles;
    table.seqs[threadIdx.x % 32] = seq;
    if (threadIdx.x % 32 == 31) table.tiles_before[32] = inclusive;
  }
  __device__ int TilesUpTo() const {
    int inclusive = tiles;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(~0u, inclusive, offset);
      if (threadIdx.x % 32 >= offset) inclusive += before;
    }
    return inclusive;
  }
};

// The same with any number of tokens: writes the share, and, where tiles are dealt, the table.
// `warp_tiles` is shared memory, one per warp. `deals`: the launch has a word for tickets. By all
// kThreads threads of the block; the caller synchronises.
template <int kTokens, int kThreads, int kTable>
__device__ void FindShare(const IndexScoresArgs& args, bool deals,
                          int64_t (&warp_tiles)[kThreads / 32], TileTable<kTable>& table,
                          IndexShare& share) {
  const int64_t per_thread = (args.num_tokens + kThreads - 1) / kThreads;
  const int64_t begin = min(threadIdx.x * per_thread, args.num_tokens);
  const int64_t end = min(begin + per_thread, args.num_tokens);
  const int first_seq = begin < end ? args.token_seq[begin] : 0;  // beside the loads of lengths
  int64_t tiles = 0;
  for (int64_t token = begin; token < end; ++token) tiles += TilesStartingAt<kTokens>(args, token);
  int64_t inclusive = tiles;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t before = __shfl_up_sync(~0u, inclusive, offset);
    if (threadIdx.x % 32 >= offset) inclusive += before;
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 31) warp_tiles[warp] = inclusive;
  __syncthreads();
  int64_t total = 0;
  int64_t at = inclusive - tiles;  // tiles before this thread's tokens
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i == warp) at += total;
    total += warp_tiles[i];
  }
  const int64_t fixed = FixedTiles<kThreads>(args, deals, total);
  if (fixed < total) {
    table.tiles_before[threadIdx.x] = static_cast<int>(at);
    table.seqs[threadIdx.x] = first_seq;
  }
  const int64_t first = blockIdx.x * fixed / gridDim.x;
  const int64_t last = (blockIdx.x + 1) * fixed / gridDim.x;
  if (threadIdx.x == 0) {
    share.num_tiles = last - first;
    share.dealt = fixed;
    share.total = total;
  }
  if (at > first || first >= at + tiles) return;
  for (int64_t token = begin;; ++token) {
    const int here = TilesStartingAt<kTokens>(args, token);
    if (first < at + here) {
      share.first_token = static_cast<int>(token);
      share.first_seq = token == begin ? first_seq : args.token_seq[token];
      share.first_tile = static_cast<int>(first - at);
      return;
    }
    at += here;
  }
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/launchers.h"

// How the index scores kernel divides its work: the key tiles of all tokens, in order, are cut into
// one equal range per thread block.
namespace lodestone::cuda {

constexpr int kTileEntries = 64;  // of a page at ratio 4

// Adjacent tokens of one sequence that share key tiles. A group of two starts at an even token.
struct TokenGroup {
  int tokens;
  int tiles;
};

// One block's range of tiles.
struct IndexShare {
  int first_token;
  int first_seq;   // its row of the block table
  int first_tile;  // of that token
  int64_t num_tiles;
};

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

// Writes this block's share to `share`; `warp_tiles` is shared memory, one per warp. By all
// kThreads threads of the block; the caller synchronises.
template <int kTokens, int kThreads>
__device__ void FindShare(const IndexScoresArgs& args, int64_t (&warp_tiles)[kThreads / 32],
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
  const int64_t first = blockIdx.x * total / gridDim.x;
  const int64_t last = (blockIdx.x + 1) * total / gridDim.x;
  if (threadIdx.x == 0) share.num_tiles = last - first;
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

// Calls f(token, group, tile, count, number) for each token group of a share that has tiles in it:
// its tiles [tile, tile + count), which are the share's from `number` on.
template <int kTokens, typename F>
__device__ void ForEachGroup(const IndexScoresArgs& args, const IndexShare& share, const F& f) {
  int token = share.first_token;
  int tile = share.first_tile;
  uint32_t number = 0;
  for (int64_t left = share.num_tiles; left > 0;) {
    const TokenGroup group = GroupAt<kTokens>(args, token);
    const int count = static_cast<int>(min(static_cast<int64_t>(group.tiles - tile), left));
    if (count > 0) f(token, group, tile, count, number);
    number += count;
    left -= count;
    tile = 0;
    token += group.tokens;
  }
}

}  // namespace lodestone::cuda

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/index_share.cuh"
#include "runtime/cache_format.h"

// Tile constants and shared memory of the index scores kernel (kernels/cuda/index_scores.cu).
namespace lodestone::cuda {

constexpr int kTicketTiles = 8;   // of a coarse ticket
constexpr int kFineTiles = 4;     // of a fine one
constexpr int kCoarseShare = 14;  // sixteenths of what is dealt

struct IndexDims {
  static constexpr int kDims = 128;  // d_i
  static constexpr int kHeads = 64;  // H_i, at most
};

template <IndexKeyFormat kTileFormat, int kTileTokens>
struct IndexScoresTile : IndexDims {
  static constexpr IndexKeyFormat kFormat = kTileFormat;
  static constexpr int kTokens = kTileTokens;  // that share a key tile
  static constexpr int kColumns = kTokens * kHeads;
  static constexpr bool kWidens = kFormat != IndexKeyFormat::kBf16;
  // Decode with bf16 keys is bound by bytes, and two warpgroups keep up. Widening is bound by issue
  // slots and hides its latency behind other warpgroups.
  static constexpr int kMathGroups = kTokens == 2 ? 3 : kWidens ? 4 : 2;
  // fp4 keys and queries are multiplied as integers (index_integers.cuh) where they can be. Warps
  // beside the math warps find out which keys those are, of a whole tile: the warps of a math
  // warpgroup must start the same products, not those of two branches.
  static constexpr bool kHasIntegers = kFormat == IndexKeyFormat::kFp4;
  static constexpr bool kMovesRegisters = kMathGroups == 4;
  static constexpr int kMathRegisters = 112;
  static constexpr int kLoadRegisters = 32;
  static constexpr bool kKeepsWeights = kTokens == 1;
  static constexpr int kMathThreads = 128 * kMathGroups;
  static constexpr int kIntegerWarps = 2;
  static constexpr bool kSharedTables = kTokens == 1;  // else registers are short
  // Math threads read the queries of decode from global memory and make integers of them; else the
  // copy engine brings them.
  static constexpr bool kFetchesQueries = kHasIntegers && kTokens == 1;
  // Then one buffer of integers is enough, whose address is the same in every product.
  static constexpr bool kOneQuery = kFetchesQueries;
  static constexpr int kStartTiles = kFetchesQueries ? 6 : 0;  // last as long as a token's start
  // Math warpgroups wait for their next tile while products are on their way: in decode keys may be
  // late, and sums that could run would wait for them.
  static constexpr bool kWaitsAhead = kTokens == 2;
  static constexpr int kFewTiles = 4;  // of a token group in a block: not worth making integers
  static constexpr int kKeyWarps = kMathGroups == 3 && !kHasIntegers ? 3 : 2;
  static constexpr int kThreads = kMathThreads + 128;  // key warps, query or integer warps
  static constexpr int kPayloadBytes =
      kTileEntries * static_cast<int>(IndexKeyRowBytes(kFormat, kDims).payload);
  static constexpr int kScaleBytes =
      kTileEntries * static_cast<int>(IndexKeyRowBytes(kFormat, kDims).scale);
  static constexpr int kQueryHalfBytes = kColumns * 128;  // 64 dims of every column
  // The ring takes more than half of the shared memory (kBf16) or the threads more than half of the
  // registers: blocks of the next launch must not share a processor with one of this, since each
  // block has an equal share of the tiles.
  static constexpr int kStages = kTokens == 2 ? (kFormat == IndexKeyFormat::kFp4 ? 18 : 9)
                                              : (kFormat == IndexKeyFormat::kFp4 ? 16 : 8);
  // Tickets (index_ticket.cuh) pay where reading is the bound: products take equal times.
  static constexpr bool kDeals = kTokens == 1 && !kWidens;
  static constexpr int kItems = 4;
  static constexpr int kItemReaders = kMathThreads / 32 + kKeyWarps + 1;  // warps
  // Else a warp could wait for a phase of a barrier while the phase before is incomplete still, and
  // take the one before that for it.
  static_assert(kStages % kMathGroups == 0 && kStages % kKeyWarps == 0 &&
                    (!kHasIntegers || kStages % kIntegerWarps == 0),
                "a stage has one math warpgroup, one key warp and one integer warp");
  static_assert(kPayloadBytes % 1024 == 0, "tiles keep the alignment that swizzled rows need");
};

// Tiles of one token that were dealt to this block.
struct IndexItem {
  int token;
  int tile;
  int count;                // 0: no more tiles
  int pages[kTicketTiles];  // of the block table
};

// Keys and queries as integers: IntegerRows of each two keys; queries [column, 128], with their
// units in the weights.
template <typename Tile, bool kHasIntegers = Tile::kHasIntegers>
struct alignas(1024) IntegersShared {
  uint8_t query[Tile::kOneQuery ? 1 : 2][Tile::kColumns * IndexDims::kDims];
  alignas(16) float weight[2][Tile::kColumns];
  alignas(16) uint32_t multipliers[Tile::kStages][kTileEntries];
  alignas(16) float factor[Tile::kStages][kTileEntries];
  uint4 tables[4];  // from 1 on, IntegerTable of multipliers 1, 2 and 4
  uint64_t scale_full[Tile::kStages];
};
template <typename Tile>
struct IntegersShared<Tile, false> {};

template <typename Tile>
struct alignas(1024) IndexScoresShared {
  uint8_t keys[Tile::kStages][Tile::kPayloadBytes];
  uint8_t query[2][2 * Tile::kQueryHalfBytes];
  alignas(16) float weight[2][Tile::kColumns];
  alignas(16) uint8_t scale[Tile::kWidens ? Tile::kStages : 1][kTileEntries * 4];
  IntegersShared<Tile> integers;
  uint64_t key_full[Tile::kStages];
  uint64_t key_empty[Tile::kStages];
  uint64_t query_full[2];
  uint64_t query_empty[2];
  uint64_t item_full[Tile::kItems];
  uint64_t item_empty[Tile::kItems];
  IndexItem items[Tile::kItems];
  TileTable<Tile::kDeals ? Tile::kThreads : 1> table;
  int64_t warp_tiles[Tile::kThreads / 32];
  IndexShare share;
  uint32_t e2m1_table_low;  // kE2m1Low
  uint32_t minus_one;       // ~0u
};

// The first of the tiles from `number` on that falls to `member` of kMembers which take turns.
template <int kMembers>
__device__ int TurnOf(int member, uint32_t number) {
  return static_cast<int>((member + kMembers - number % kMembers) % kMembers);
}

}  // namespace lodestone::cuda

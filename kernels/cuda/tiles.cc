#include "kernels/cuda/tiles.h"

#include <algorithm>

namespace lodestone::cuda {
namespace {

constexpr int64_t kScratchAlignment = 256;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

TopKTile ChooseTopKTile(int64_t num_rows, int64_t max_visible, int num_processors) {
  // Measured on an H200 (132 processors). Many rows share processors: with small batches, which
  // leave the bound to a part of the row, they were faster (1,024 rows of 32,768: 46.6 us against
  // 51.7). While the blocks are no more than the processors, they are slower if two of them, or one
  // and the next launch's, share a processor (128 rows of 1,024: 6.1 us against 4.8).
  TopKTile tile;
  if (num_rows > num_processors) {
    if (max_visible <= kTopKThreads * 64) tile.per_thread = 16;
    return tile;
  }
  tile.alone = true;
  // Blocks of a cluster pay for what they tell each other if each keeps 8,192 entries, two alone
  // 16,384. Clusters of more than two do not all run at once if they need nearly all processors
  // (4 blocks a row: 29 rows do, 31 take 1.4 times as long as by 2). So 132 processors take up to
  // 24 rows by 4 blocks, 12 of many scores or 8 others by 8.
  constexpr int64_t kManyScores = int64_t{1} << 21;  // 8 MiB
  const bool many = num_rows * max_visible >= kManyScores;
  const auto fit = [&](int64_t blocks) { return blocks * num_rows <= num_processors; };
  if (max_visible >= (fit(4) ? 32768 : fit(3) ? 65536 : 131072) && fit(2)) tile.cluster = 2;
  if (max_visible >= (fit(8) ? 32768 : 65536) && 2 * num_processors >= 11 * num_rows) {
    tile.cluster = 4;
  }
  if (max_visible >= 65536 && fit(many ? 11 : 16)) tile.cluster = 8;
  const int64_t of_thread = CeilDiv(max_visible, tile.cluster * kTopKThreads);
  tile.per_thread = of_thread <= 16 ? 16 : of_thread <= 32 ? 32 : 64;
  // From memory a ring reads faster (32 rows of 262,144: 13.5 us against 14.5), but it begins later
  // (1 such row: 6.9 us against 6.1; 32 of 32,768: 6.0 against 5.6).
  // One block's sample of a longer row holds less than 16 of the best 512, too few for a bound.
  tile.ring = tile.per_thread > 16 && many && (tile.cluster > 1 || max_visible <= 262144);
  // Of narrower rows a thread has too few scores (64 rows of 8,192: 4.5 us against 4.0).
  tile.held = max_visible >= kMaxHeldTopK / 2 && max_visible <= kMaxHeldTopK;
  return tile;
}

int64_t ScoreStride(int64_t max_visible) { return RoundUp(std::max<int64_t>(max_visible, 1), 64); }

int64_t ScoreRows(int64_t num_tokens, int64_t max_visible) {
  const int64_t row_bytes = ScoreStride(max_visible) * 4;
  return std::clamp<int64_t>(kMaxScoreBytes / row_bytes, 1, std::max<int64_t>(num_tokens, 1));
}

int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) {
  // Not the bytes of ScoreRows: those fall where one row less fits, and a plan for the longest
  // context must hold for all shorter ones.
  const int64_t row_bytes = ScoreStride(max_visible) * 4;
  const int64_t bytes = std::max<int64_t>(num_tokens, 1) * row_bytes;
  return RoundUp(std::max(std::min(bytes, kMaxScoreBytes), row_bytes), kScratchAlignment);
}

int ManyTileRows(int64_t rows, int64_t column_tiles, int64_t processors) {
  // Measured: a tile takes as long as so many rows do, beside its own.
  constexpr int64_t kTileCost = 200;
  const auto cost = [&](int tile) {
    return CeilDiv(CeilDiv(rows, tile) * column_tiles, processors) * (tile + kTileCost);
  };
  int best = 176;
  for (const int tile : {128, 64}) {
    if (cost(tile) < cost(best)) best = tile;
  }
  return best;
}

int ChooseHcTokens(int64_t num_tokens, bool clusters) {
  // An H200 runs seven clusters of 16 blocks at a time where each block needs a processor.
  constexpr int64_t kClusters = 7;
  constexpr int64_t kMaxTokens = 5;
  const int64_t tokens = CeilDiv(num_tokens, kClusters);
  return clusters && tokens <= kMaxTokens ? static_cast<int>(tokens) : 0;
}

AttentionSplits ChooseAttentionSplits(int64_t max_keys) {
  constexpr int64_t kStepsPerSplit = 18;  // 1,152 keys: a window of 128 and top-k 1,024
  const int64_t steps = std::max<int64_t>(CeilDiv(max_keys, kAttentionKeys), 1);
  return {.splits = static_cast<int>(CeilDiv(steps, kStepsPerSplit)),
          .steps_per_split = static_cast<int>(kStepsPerSplit)};
}

ClusterShape ChooseAttentionCluster(int64_t num_tokens, int64_t num_heads, int64_t max_keys,
                                    const MaxClusters& max_clusters) {
  const struct {
    ClusterShape shape;
    int max;
  } choices[] = {{{16, 16}, max_clusters.of16}, {{32, 16}, max_clusters.of16},
                 {{16, 8}, max_clusters.of8},   {{32, 8}, max_clusters.of8},
                 {{64, 16}, max_clusters.of16}, {{64, 8}, max_clusters.of8},
                 {{64, 4}, max_clusters.of4},   {{64, 2}, max_clusters.of2}};
  const int64_t steps = CeilDiv(max_keys, kAttentionKeys);
  for (const auto& [shape, max] : choices) {
    const int64_t clusters = num_tokens * CeilDiv(num_heads, shape.heads);
    if (steps <= MaxClusterSteps(shape) && clusters <= max) return shape;
  }
  return {};
}

int64_t SparseAttentionScratchBytes(int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                                    const SparseAttentionTile& tile) {
  if (tile.split.splits == 1) return 0;
  const int64_t rows = num_tokens * num_heads * tile.split.splits;
  return RoundUp(rows * head_dim * 4, kScratchAlignment) + RoundUp(rows * 8, kScratchAlignment);
}

}  // namespace lodestone::cuda

#include "kernels/cuda/tiles.h"

#include <gtest/gtest.h>

namespace lodestone::cuda {
namespace {

constexpr int kProcessors = 132;

TEST(TopKTileTest, HoldsEveryWidthInRegisters) {
  for (int64_t rows : {1, 8, 32, 64, 1024, 8192}) {
    for (int64_t width : {0, 1, 4096, 4097, 32768, 32769, 131072, 262143, 262144}) {
      const TopKTile tile = ChooseTopKTile(rows, width, kProcessors);
      EXPECT_GE(int64_t{1024} * tile.cluster * tile.per_thread, width) << rows;
      EXPECT_LE(tile.cluster, 8);
      EXPECT_LE(tile.per_thread, 32);
    }
  }
}

TEST(TopKTileTest, AsksForClustersThatLaunchAtAnyWidth) {
  for (int64_t rows : {1, 32, 8192}) {
    for (int64_t width : {262145, 524289, 1048576, 1 << 30}) {
      EXPECT_LE(ChooseTopKTile(rows, width, kProcessors).cluster, 8) << rows << " x " << width;
    }
  }
}

TEST(TopKTileTest, SpreadsFewLongRowsOnly) {
  EXPECT_EQ(ChooseTopKTile(1, 32768, kProcessors).cluster, 4);
  EXPECT_EQ(ChooseTopKTile(32, 32768, kProcessors).cluster, 2);
  EXPECT_EQ(ChooseTopKTile(64, 32768, kProcessors).cluster, 2);
  EXPECT_EQ(ChooseTopKTile(1024, 32768, kProcessors).cluster, 1);
  EXPECT_EQ(ChooseTopKTile(1, 8192, kProcessors).cluster, 1);
}

TEST(IndexTopKScratchTest, StaysBelowTheCapAtAnyContext) {
  for (int64_t tokens : {1, 256, 8192}) {
    for (int64_t visible : {0, 1, 32768, 262144}) {
      EXPECT_LE(IndexTopKScratchBytes(tokens, visible), kMaxScoreBytes);
      EXPECT_GE(IndexTopKScratchBytes(tokens, visible),
                ScoreRows(tokens, visible) * ScoreStride(visible) * 4);
    }
  }
  EXPECT_EQ(ScoreRows(8192, 262144), 512);
  EXPECT_EQ(ScoreRows(256, 262144), 256);
}

TEST(IndexTopKScratchTest, OfTheLongestContextIsEnoughForAllShorterOnes) {
  for (int64_t tokens : {1, 500, 512, 8192}) {
    int64_t shorter = 0;
    for (int64_t visible = 0; visible <= 262144; visible += 64) {
      const int64_t bytes = IndexTopKScratchBytes(tokens, visible);
      ASSERT_GE(bytes, shorter) << tokens << " x " << visible;
      ASSERT_GE(bytes, IndexTopKScratchBytes(tokens / 2, visible)) << tokens << " x " << visible;
      ASSERT_GE(bytes, ScoreRows(tokens, visible) * ScoreStride(visible) * 4);
      shorter = bytes;
    }
  }
}

TEST(AttentionSplitsTest, CoverTheKeysAndFillTheProcessors) {
  for (int64_t tokens : {1, 7, 32, 128, 4096}) {
    for (int64_t heads : {4, 64, 128}) {
      for (int64_t keys : {1, 128, 640, 1152, 8320}) {
        for (bool deterministic : {false, true}) {
          const AttentionSplits split =
              ChooseAttentionSplits(tokens, heads, keys, kProcessors, deterministic);
          EXPECT_GE(int64_t{64} * split.splits * split.steps_per_split, keys);
          EXPECT_LT(int64_t{64} * (split.splits - 1) * split.steps_per_split, keys);
        }
      }
    }
  }
  EXPECT_EQ(ChooseAttentionSplits(1, 64, 640, kProcessors, false).splits, 10);
  EXPECT_EQ(ChooseAttentionSplits(128, 64, 640, kProcessors, false).splits, 1);
}

TEST(AttentionSplitsTest, DeterministicStepsDoNotDependOnTheBatch) {
  for (int64_t keys : {640, 1152, 8320}) {
    const int steps = ChooseAttentionSplits(1, 64, keys, kProcessors, true).steps_per_split;
    for (int64_t tokens : {2, 64, 500}) {
      EXPECT_EQ(ChooseAttentionSplits(tokens, 64, keys, kProcessors, true).steps_per_split, steps);
    }
  }
}

}  // namespace
}  // namespace lodestone::cuda

#include "kernels/cuda/tiles.h"

#include <gtest/gtest.h>

#include <utility>

namespace lodestone::cuda {
namespace {

constexpr int kProcessors = 132;

TEST(ManyTileRowsTest, LeavesFewProcessorsWithoutATile) {
  EXPECT_EQ(ManyTileRows(128, 8, kProcessors), 64);     // 16 tiles, not 8
  EXPECT_EQ(ManyTileRows(128, 256, kProcessors), 128);  // two turns, not four
  EXPECT_EQ(ManyTileRows(512, 32, kProcessors), 128);   // 128 tiles in one turn
  EXPECT_EQ(ManyTileRows(4096, 32, kProcessors), 176);  // six turns of 176, not eight of 128
  EXPECT_EQ(ManyTileRows(4096, 256, kProcessors), 176);
}

TEST(TopKTileTest, AsksForClustersThatLaunchAtAnyWidth) {
  for (int64_t rows : {1, 8, 32, 64, 1024, 8192}) {
    for (int64_t width : {0, 1, 4096, 32768, 262144, 262145, 1048576, 1 << 30}) {
      const int cluster = ChooseTopKTile(rows, width, kProcessors).cluster;
      EXPECT_TRUE(cluster == 1 || cluster == 2 || cluster == 4 || cluster == 8)
          << rows << " x " << width << ": " << cluster;
    }
  }
}

TEST(TopKTileTest, SpreadsFewLongRowsOnly) {
  EXPECT_EQ(ChooseTopKTile(1, 262144, kProcessors).cluster, 8);
  EXPECT_EQ(ChooseTopKTile(16, 32768, kProcessors).cluster, 4);
  EXPECT_EQ(ChooseTopKTile(24, 65536, kProcessors).cluster, 4);
  EXPECT_EQ(ChooseTopKTile(32, 32768, kProcessors).cluster, 2);
  EXPECT_EQ(ChooseTopKTile(64, 131072, kProcessors).cluster, 2);
  EXPECT_EQ(ChooseTopKTile(64, 65536, kProcessors).cluster, 1);
  EXPECT_EQ(ChooseTopKTile(1024, 262144, kProcessors).cluster, 1);
  EXPECT_EQ(ChooseTopKTile(1, 8192, kProcessors).cluster, 1);
}

// Those of more than two blocks do not all fit the parts of the card that a cluster has to be in.
TEST(TopKTileTest, ClustersLeaveAQuarterOfTheProcessorsFree) {
  for (int64_t rows = 1; rows <= kProcessors; ++rows) {
    for (int64_t width : {1000, 32768, 65536, 1 << 20}) {
      const int cluster = ChooseTopKTile(rows, width, kProcessors).cluster;
      EXPECT_LE(rows * cluster, cluster <= 2 ? kProcessors : kProcessors * 3 / 4)
          << rows << " x " << width;
    }
  }
}

TEST(TopKTileTest, SharesAProcessorWhereRowsAreManyOrShort) {
  EXPECT_EQ(ChooseTopKTile(64, 32768, kProcessors).per_thread, 64);
  EXPECT_EQ(ChooseTopKTile(1, 32768, kProcessors).per_thread, 16);
  EXPECT_EQ(ChooseTopKTile(1024, 32768, kProcessors).per_thread, 16);
  EXPECT_EQ(ChooseTopKTile(1, 8192, kProcessors).per_thread, 16);
  EXPECT_TRUE(ChooseTopKTile(128, 8192, kProcessors).alone);
  EXPECT_FALSE(ChooseTopKTile(1024, 8192, kProcessors).alone);
}

TEST(TopKTileTest, HoldsRowsThatFitAProcessorEach) {
  EXPECT_TRUE(ChooseTopKTile(1, kMaxHeldTopK, kProcessors).held);
  EXPECT_TRUE(ChooseTopKTile(132, 16384, kProcessors).held);
  EXPECT_FALSE(ChooseTopKTile(133, kMaxHeldTopK, kProcessors).held);
  EXPECT_FALSE(ChooseTopKTile(64, kMaxHeldTopK + 1, kProcessors).held);
  EXPECT_FALSE(ChooseTopKTile(64, 8192, kProcessors).held);
}

TEST(TopKTileTest, ManyScoresOfFewBlocksPassThroughARing) {
  EXPECT_TRUE(ChooseTopKTile(8, 262144, kProcessors).ring);
  EXPECT_TRUE(ChooseTopKTile(128, 262144, kProcessors).ring);
  EXPECT_TRUE(ChooseTopKTile(64, 32768, kProcessors).ring);
  EXPECT_FALSE(ChooseTopKTile(32, 32768, kProcessors).ring);
  EXPECT_FALSE(ChooseTopKTile(1, 262144, kProcessors).ring);
  EXPECT_FALSE(ChooseTopKTile(1024, 262144, kProcessors).ring);
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

TEST(AttentionSplitsTest, CoverTheKeysInFixedSteps) {
  const int steps = ChooseAttentionSplits(1).steps_per_split;
  for (int64_t keys : {1, 128, 640, 1152, 1153, 8320}) {
    const AttentionSplits split = ChooseAttentionSplits(keys);
    EXPECT_EQ(split.steps_per_split, steps);
    EXPECT_GE(int64_t{64} * split.splits * steps, keys);
    EXPECT_LT(int64_t{64} * (split.splits - 1) * steps, keys);
  }
  EXPECT_EQ(ChooseAttentionSplits(1152).splits, 1);
}

constexpr MaxClusters kMaxClusters = {.of16 = 7, .of8 = 15, .of4 = 30, .of2 = 66};

TEST(AttentionClusterTest, TakesAShapeOfWhichAllClustersRunAtOnce) {
  const auto choose = [](int64_t tokens, int64_t heads) {
    const ClusterShape shape = ChooseAttentionCluster(tokens, heads, 640, kMaxClusters);
    return std::pair(shape.heads, shape.blocks);
  };
  EXPECT_EQ(choose(1, 64), std::pair(16, 16));
  EXPECT_EQ(choose(2, 64), std::pair(32, 16));
  EXPECT_EQ(choose(3, 64), std::pair(32, 16));
  EXPECT_EQ(choose(4, 64), std::pair(32, 8));
  EXPECT_EQ(choose(8, 64), std::pair(64, 8));
  EXPECT_EQ(choose(16, 64), std::pair(64, 4));
  EXPECT_EQ(choose(32, 64), std::pair(64, 2));
  EXPECT_EQ(choose(66, 64), std::pair(64, 2));
  EXPECT_EQ(choose(67, 64), std::pair(0, 0));
  EXPECT_EQ(choose(1, 128), std::pair(32, 16));
  EXPECT_EQ(ChooseAttentionCluster(1, 64, 640, {}).heads, 0);
}

TEST(AttentionClusterTest, LeavesLongListsToSplits) {
  EXPECT_EQ(ChooseAttentionCluster(1, 64, 1024, kMaxClusters).heads, 16);
  EXPECT_EQ(ChooseAttentionCluster(1, 64, 1152, kMaxClusters).heads, 32);
  EXPECT_EQ(ChooseAttentionCluster(1, 64, 1152, kMaxClusters).blocks, 16);
  EXPECT_EQ(ChooseAttentionCluster(8, 64, 1152, kMaxClusters).heads, 0);
  EXPECT_EQ(ChooseAttentionCluster(1, 64, 1153, kMaxClusters).heads, 0);
}

}  // namespace
}  // namespace lodestone::cuda

#include "model/weights.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/transformer.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

TEST(WeightsTest, TakeExactlyThePlannedBytes) {
  for (const std::string backend : {"cpu", "reference"}) {
    const LoadedModel& model = TestModel("mini", backend);
    EXPECT_EQ(model.weights.memory.size(), WeightBytes(model.config, model.ops)) << backend;
  }
}

TEST(WeightsTest, ProgressEndsWithAllBytes) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  const Checkpoint checkpoint = *Checkpoint::Open(dir.path(), {});
  std::vector<std::pair<int64_t, int64_t>> calls;
  const auto weights =
      LoadWeights(checkpoint.config(), checkpoint, TestBackend("reference"),
                  [&](int64_t done, int64_t total) { calls.emplace_back(done, total); });
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_FALSE(calls.empty());
  for (const auto& [done, total] : calls) {
    EXPECT_LE(done, total);
    EXPECT_EQ(total, weights->memory.size());
  }
  EXPECT_EQ(calls.back().first, calls.back().second);
}

// The files of the fixture hold tensors in name order, so the i64 table lies at an odd place.
TEST(WeightsTest, HashTableIsNarrowedWhereverTheFilePlacesIt) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  const Checkpoint checkpoint = *Checkpoint::Open(dir.path(), {});
  const auto weights = LoadWeights(checkpoint.config(), checkpoint, TestBackend("cpu"), nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto* experts = weights->layers[0].feed_forward.tid2eid.as<int32_t>();
  for (int32_t token = 0; token < 32; ++token) {
    EXPECT_EQ(experts[2 * token], token % 4);
    EXPECT_EQ(experts[2 * token + 1], (token + 1) % 4);
  }
}

TEST(WeightsTest, AnyNumberOfThreadsLoadsTheSameBytes) {
  const Checkpoint checkpoint = *Checkpoint::Open(NeedleDirectory(), {});
  const auto load = [&](int num_threads) {
    const auto weights = LoadWeights(checkpoint.config(), checkpoint, TestBackend("cpu"), nullptr,
                                     num_threads);
    EXPECT_TRUE(weights.ok()) << weights.status();
    const std::byte* bytes = weights->memory.data();
    return std::vector<std::byte>(bytes, bytes + weights->memory.size());
  };
  EXPECT_TRUE(load(1) == load(5));
}

TEST(WeightsTest, LayersHoldWhatTheirKindNeeds) {
  const LoadedModel& model = TestModel("needle-tiny", "cpu");
  const std::vector<LayerWeights>& layers = model.weights.layers;
  ASSERT_EQ(layers.size(), 5u);
  EXPECT_TRUE(layers[0].attention.compressor.ape.empty());
  EXPECT_EQ(layers[2].attention.compressor.ape.ShapeString(), "F32[4, 1024]");
  EXPECT_EQ(layers[2].attention.indexer.compressor.ape.ShapeString(), "F32[4, 256]");
  EXPECT_EQ(layers[3].attention.compressor.ape.ShapeString(), "F32[128, 512]");
  EXPECT_TRUE(layers[3].attention.indexer.compressor.ape.empty());
  EXPECT_EQ(layers[0].feed_forward.tid2eid.ShapeString(), "I32[1024, 2]");
  EXPECT_TRUE(layers[0].feed_forward.bias.empty());
  EXPECT_EQ(layers[1].feed_forward.bias.ShapeString(), "F32[8]");
  EXPECT_EQ(layers[1].attention.wo_a.groups, 2);
}

TEST(WeightsTest, ExpertOutOfRangeIsNamed) {
  const TempDir dir;
  CheckpointFixture fixture;
  for (auto& [shard, tensors] : fixture.shards) {
    const auto table = tensors.find("layers.0.ffn.gate.tid2eid");
    if (table != tensors.end()) table->second.bytes[8 * 7] = 4;
  }
  fixture.Write(dir.path());
  const Checkpoint checkpoint = *Checkpoint::Open(dir.path(), {});
  const absl::Status status =
      LoadWeights(checkpoint.config(), checkpoint, TestBackend("reference"), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.0.ffn.gate.tid2eid"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("expert 4 for token 3, there are 4"));
}

TEST(WorkspaceTest, GrowsWithEveryLimit) {
  const LoadedModel& model = TestModel("needle-tiny", "cpu");
  const auto bytes = [&](const ForwardLimits& limits) {
    return Transformer::WorkspaceBytes(model.config, model.ops, {}, limits);
  };
  const ForwardLimits base{.max_tokens = 64, .max_logit_rows = 4, .max_context = 4096};
  ForwardLimits more_tokens = base, longer = base, scores = base;
  more_tokens.max_tokens = 128;
  longer.max_context = 1 << 20;
  scores.index_scores = true;
  EXPECT_GT(bytes(more_tokens), bytes(base));
  EXPECT_GT(bytes(longer), bytes(base));
  EXPECT_GT(bytes(scores), bytes(base));
  // Index scores are tiled: a context of a million tokens costs no scratch of that length.
  EXPECT_LT(bytes(longer) - bytes(base), int64_t{256} << 20);
}

}  // namespace
}  // namespace lodestone

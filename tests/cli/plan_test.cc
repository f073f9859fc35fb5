#include "cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/inspect.h"
#include "engine/engine.h"

namespace lodestone {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kModel[] = LODESTONE_SOURCE_DIR "/models/needle-tiny";

PlanConfig Config() {
  PlanConfig config;
  config.model = kModel;
  config.max_context = 12'288;
  return config;
}

TEST(PlanTest, ShowsAllFormatsSideBySide) {
  const auto table = PlanTable(Config());
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, ContainsRegex("index keys as +bf16 +fp8 +fp4"));
  // Two indexed layers, 64 entries of 256, 132 and 68 bytes per 256 tokens: 128, 66 and 34 bytes a
  // token; latents 2 x 1024 / 4 + 1024 / 128 = 520.
  EXPECT_THAT(*table, ContainsRegex("bytes per token +648.0 +586.0 +554.0"));
}

TEST(PlanTest, NeedsOnlyTheConfig) {
  const std::string folder = ::testing::TempDir() + "/plan_only";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(std::string(kModel) + "/config.json", folder + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  PlanConfig config = Config();
  config.model = folder;
  EXPECT_EQ(*PlanTable(config), *PlanTable(Config()));
}

TEST(PlanTest, FormatThatDoesNotFitSaysWhatItNeeds) {
  PlanConfig config = Config();
  config.memory = ByteSize{1 << 20};
  const auto table = PlanTable(config);
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, HasSubstr("bf16: a worker needs at least"));
}

TEST(PlanTest, TheExitCodeSaysWhetherAnyFormatFits) {
  const char* argv[] = {"plan", "--model", kModel, "--memory", "1GiB"};
  EXPECT_EQ(RunPlan(5, argv), 0);
  argv[4] = "1MiB";
  EXPECT_EQ(RunPlan(5, argv), 1);
}

TEST(PlanTest, ASettingThatCannotBeIsBadUsage) {
  const char* argv[] = {"plan", "--model", kModel, "--chunk-tokens", "some"};
  EXPECT_EQ(RunPlan(5, argv), 2);
  argv[3] = "--threads";
  argv[4] = "-1";
  EXPECT_EQ(RunPlan(5, argv), 2);
}

TEST(PlanTest, ChunksAreNamedAsByThePrefillWorker) {
  PlanConfig config = Config();
  const std::string of_auto = *PlanTable(config);
  config.chunk_tokens = "512";
  EXPECT_EQ(*PlanTable(config), of_auto);
  config.chunk_tokens = "whole";
  const std::string of_whole = *PlanTable(config);
  config.chunk_tokens = "12288";
  EXPECT_EQ(*PlanTable(config), of_whole);
  config.chunk_tokens = "some";
  EXPECT_THAT(PlanTable(config).status().message(), HasSubstr("--chunk-tokens is \"some\""));
}

TEST(PlanTest, CountsTheScratchOfAsManyThreadsAsAWorkerHas) {
  PlanConfig config = Config();
  const std::string of_default = *PlanTable(config);
  config.threads = NumComputeThreads(EngineOptions());
  EXPECT_EQ(*PlanTable(config), of_default);
  config.threads += 8;
  EXPECT_NE(*PlanTable(config), of_default);
}

TEST(PlanTest, RefusesThreadsThatAWorkerRefuses) {
  PlanConfig config = Config();
  config.threads = 1'000'000;
  EXPECT_THAT(PlanTable(config).status().message(), HasSubstr("--threads is 1000000"));
}

TEST(PlanTest, UnknownFolderIsAnError) {
  PlanConfig config = Config();
  config.model = "/no/such/model";
  EXPECT_FALSE(PlanTable(config).ok());
}

TEST(InspectTest, ShowsFactsTensorsTotalsAndTheModelId) {
  InspectConfig config;
  config.directory = kModel;
  const auto text = DescribeCheckpoint(config);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("5: 2 window, 2 indexed, 1 dense"));
  EXPECT_THAT(*text, HasSubstr("BF16[1024, 256]"));
  EXPECT_THAT(*text, ContainsRegex("total +255 tensors, 12638791 numbers"));
  EXPECT_THAT(*text, ContainsRegex("model id +[0-9a-f]+\n"));
}

TEST(InspectTest, OverlayChangesTheModelId) {
  InspectConfig config;
  config.directory = kModel;
  config.tensors = false;
  const auto base = DescribeCheckpoint(config);
  config.overlay = std::string(kModel) + "/stress/index-outlier-2e9.safetensors";
  const auto stressed = DescribeCheckpoint(config);
  ASSERT_TRUE(base.ok() && stressed.ok()) << base.status() << stressed.status();
  EXPECT_NE(base->substr(base->find("model id")), stressed->substr(stressed->find("model id")));
}

}  // namespace
}  // namespace lodestone

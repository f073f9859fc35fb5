#include "cli/sweep_output.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::HasSubstr;

SweepTable Table(SweepKind kind, std::string label, NeedleOutcome outcome) {
  SweepTable table(kind, std::move(label));
  table.Add({.length = 1023,
             .place = "0.5",
             .outcome = outcome,
             .prompt_tokens = 1023,
             .expected = "A-12-B",
             .answer = "The secret code is A-12-B.",
             .reply = "The secret code is A-12-B."});
  return table;
}

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

TEST(SweepOutputTest, EarlierSweepsAreDrawnBeforeThisOne) {
  SweepConfig config;
  config.json = ::testing::TempDir() + "/earlier.json";
  const std::vector<SweepTable> earlier = {
      Table(SweepKind::kDepths, "bf16", NeedleOutcome::kFound),
      Table(SweepKind::kDepths, "fp8", NeedleOutcome::kMissed)};
  ASSERT_TRUE(WriteSweeps(config, earlier).ok());
  config.panels = {config.json};
  config.json.clear();
  config.svg = ::testing::TempDir() + "/map.svg";
  const SweepTable last = Table(SweepKind::kDepths, "fp4", NeedleOutcome::kFound);
  ASSERT_TRUE(WriteSweeps(config, {&last, 1}).ok());
  const std::string svg = ReadFile(config.svg);
  const size_t bf16 = svg.find("bf16: 1 of 1 found");
  const size_t fp8 = svg.find("fp8: 0 of 1 found");
  const size_t fp4 = svg.find("fp4: 1 of 1 found");
  ASSERT_NE(fp4, svg.npos) << svg;
  EXPECT_LT(bf16, fp8);
  EXPECT_LT(fp8, fp4);
}

TEST(SweepOutputTest, JsonToStdoutIsAllThatStdoutHas) {
  SweepConfig config;
  config.json = "-";
  const SweepTable table = Table(SweepKind::kDepths, "bf16", NeedleOutcome::kFound);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const absl::Status status = WriteSweeps(config, {&table, 1});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), table.ToJson() + "\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "1 of 1 found\n");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(SweepOutputTest, MissesOfBuiltInWordsNameTheFlagForOthers) {
  const auto written = [](const std::string& tokenizer_dir, NeedleOutcome outcome) {
    SweepConfig config;
    config.tokenizer_dir = tokenizer_dir;
    const SweepTable table = Table(SweepKind::kDepths, "bf16", outcome);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const absl::Status status = WriteSweeps(config, {&table, 1});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(::testing::internal::GetCapturedStdout().ends_with(" found\n"));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(written("", NeedleOutcome::kMissed), HasSubstr("--tokenizer"));
  EXPECT_EQ(written("", NeedleOutcome::kFound), "");
  EXPECT_EQ(written("", NeedleOutcome::kFailed), "");
  EXPECT_EQ(written("models/needle-tiny", NeedleOutcome::kMissed), "");
}

TEST(SweepOutputTest, PanelsThatCannotBeReadAreNamed) {
  const std::string missing = ::testing::TempDir() + "/no-such.json";
  const std::vector<std::string> files = {missing};
  EXPECT_THAT(std::string(ReadPanels(files).status().message()), HasSubstr(missing));
}

TEST(SweepOutputTest, ResiduesThatWentWrongAreListed) {
  SweepTable table = Table(SweepKind::kResidues, "", NeedleOutcome::kFound);
  EXPECT_THAT(DescribeSweep(table),
              HasSubstr("1 of 1 answers word for word, 1 of 1 prompts of the wanted length\n"));
  SweepCell other = table.cells().front();
  other.length = 1024;  // but 1,023 as the server counted
  table.Add(other);
  EXPECT_THAT(DescribeSweep(table),
              HasSubstr("1 of 2 prompts of the wanted length\n  1024 tokens (mod 4 = 0, mod 128 = "
                        "0; the server counted 1023) at depth 0.5: found"));
}

TEST(SweepOutputTest, AnErrorOfADepthSweepIsShown) {
  SweepTable table = Table(SweepKind::kDepths, "fp8", NeedleOutcome::kFound);
  SweepCell failed = table.cells().front();
  failed.outcome = NeedleOutcome::kFailed;
  failed.reply = "HTTP 400: no";
  table.Add(failed);
  EXPECT_TRUE(DescribeSweep(table).starts_with("fp8\ndepth"));
  EXPECT_THAT(DescribeSweep(table), HasSubstr("failed: HTTP 400: no\n"));
}

}  // namespace
}  // namespace lodestone

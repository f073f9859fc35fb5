#include "cli/sweep.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/test_server.h"

namespace lodestone {
namespace {

NeedleGenerator Generator() { return NeedleGenerator(BuiltInLexicon(), TokenCounter{}); }

TEST(SweepTest, GridHasEveryLengthDepthAndRepeatWithItsOwnNeedle) {
  SweepConfig config;
  config.lengths = "900,2000";
  config.depths = "0,1";
  config.repeats = 3;
  const auto questions = MakeSweepQuestions(config, Generator());
  ASSERT_TRUE(questions.ok()) << questions.status();
  EXPECT_EQ(questions->size(), 12u);
  std::set<std::string> contents;
  std::map<std::pair<int64_t, std::string>, int> cells;
  for (const SweepQuestion& question : *questions) {
    contents.insert(question.prompt.content);
    ++cells[{question.cell.length, question.cell.place}];
  }
  EXPECT_EQ(contents.size(), 12u);
  EXPECT_EQ(cells.size(), 4u);
}

TEST(SweepTest, PresetsAreThoseThatPeopleReport) {
  SweepConfig config;
  config.preset = "needle";
  const auto needle = MakeSweepQuestions(config, Generator());
  ASSERT_TRUE(needle.ok()) << needle.status();
  EXPECT_EQ(needle->size(), 5u);
  EXPECT_EQ(needle->back().cell.length, 10'498);
  config.preset = "window";
  const auto window = MakeSweepQuestions(config, Generator());
  ASSERT_TRUE(window.ok()) << window.status();
  EXPECT_EQ(window->size(), 4u);
}

TEST(SweepTest, ResiduesAreEachAskedOnceToTheToken) {
  SweepConfig config;
  config.residues = 1024;
  config.tokenizer_dir = LODESTONE_SOURCE_DIR "/models/needle-tiny";
  const auto tokenizer = Tokenizer::Load(config.tokenizer_dir + "/tokenizer.json");
  const auto lexicon = LexiconForModel(config.tokenizer_dir);
  ASSERT_TRUE(tokenizer.ok() && lexicon.ok());
  const auto questions =
      MakeSweepQuestions(config, NeedleGenerator(*lexicon, TokenCounter{.tokenizer = &*tokenizer}));
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 128u);
  std::set<int64_t> residues;
  std::set<std::pair<int64_t, std::string>> depths_of_residue;
  for (const SweepQuestion& question : *questions) {
    EXPECT_EQ(question.prompt.prompt_tokens, question.cell.length);
    residues.insert(question.cell.length % 128);
    depths_of_residue.emplace(question.cell.length % 4, question.cell.place);
    EXPECT_EQ(question.cell.answer, question.prompt.answer);
  }
  EXPECT_EQ(residues.size(), 128u);
  EXPECT_EQ(depths_of_residue.size(), 20u) << "each residue mod 4 at each of 5 depths";
}

TEST(SweepTest, ResiduesNeedATokenizerAndNoPreset) {
  SweepConfig config;
  config.residues = 1024;
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSweepQuestions(config, Generator()).status()));
  config.tokenizer_dir = "models/needle-tiny";
  config.preset = "window";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSweepQuestions(config, Generator()).status()));
}

TEST(SweepTest, SettingsThatWouldBeIgnoredAreRefused) {
  SweepConfig config;
  EXPECT_TRUE(config.Validate().ok());
  config.formats = "bf16,fp8";
  EXPECT_TRUE(absl::IsInvalidArgument(config.Validate())) << "formats of a server at --url";
  config.up = "models/needle-tiny";
  EXPECT_TRUE(config.Validate().ok());
  config.formats = "bf16,fp9";
  EXPECT_TRUE(absl::IsInvalidArgument(config.Validate()));
  config.formats = "bf16,";
  EXPECT_TRUE(absl::IsInvalidArgument(config.Validate()));
  config.formats.clear();
  config.panels = {"earlier.json"};
  EXPECT_TRUE(absl::IsInvalidArgument(config.Validate())) << "panels without --svg";
  config.svg = "map.svg";
  EXPECT_TRUE(config.Validate().ok());
}

TEST(SweepTest, BadListsAreNamed) {
  SweepConfig config;
  config.lengths = "900,x";
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSweepQuestions(config, Generator()).status()));
}

// Answers with what `reply_to` says, from several threads.
TEST(SweepTest, AnswersAreJudgedByTheCodeWhateverTheirOrder) {
  SweepConfig config;
  config.lengths = "900,1200,1500,1800";
  config.depths = "0.5";
  config.concurrency = 4;
  const auto questions = MakeSweepQuestions(config, Generator());
  ASSERT_TRUE(questions.ok());
  const std::string right = questions->at(1).cell.expected;
  std::atomic<int> asked{0};
  TestServer server([&](std::string_view) {
    ++asked;
    return std::vector<std::string>{
        OkReply(R"({"choices":[{"message":{"content":"The secret code is )" + right + R"(."}}]})")};
  });
  const OpenAiClient client(HttpClient(*ParseHttpUrl(server.url())));
  int cells = 0;
  const SweepTable table =
      AskAll(config, client, "m", *questions, [&](const SweepCell&) { ++cells; });
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(cells, 4);
  EXPECT_EQ(table.Summary(), "1 of 4");
  EXPECT_EQ(table.cells()[1].outcome, NeedleOutcome::kFound);
  EXPECT_EQ(table.cells()[0].length, 900);
}

TEST(SweepTest, ErrorsAreFailuresNotMisses) {
  SweepConfig config;
  config.lengths = "900";
  config.depths = "0.5";
  TestServer server([](std::string_view) {
    return std::vector<std::string>{Reply("400 Bad", "", R"({"error":{"message":"no"}})")};
  });
  const auto questions = MakeSweepQuestions(config, Generator());
  ASSERT_TRUE(questions.ok());
  const SweepTable table = AskAll(config, OpenAiClient(HttpClient(*ParseHttpUrl(server.url()))),
                                  "m", *questions, [](const SweepCell&) {});
  EXPECT_EQ(table.failed(), 1);
  EXPECT_EQ(table.cells()[0].reply, "HTTP 400: no");
}

}  // namespace
}  // namespace lodestone

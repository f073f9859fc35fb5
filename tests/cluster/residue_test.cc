// Caches are kept in groups of 4 and 128 tokens, in pages of 256 and in a window of 128: a prompt
// may end at every place within them. Needles, since what is lost there is lost silently.

#include <gtest/gtest.h>

#include <vector>

#include "base/config.h"
#include "cli/sweep.h"
#include "cli/sweep_output.h"
#include "tests/cluster/running_cluster.h"

namespace lodestone {
namespace {

// Every residue mod 4, and the borders of a group of 128 and of a chunk of 512.
const std::vector<int64_t> kShortForm = {383, 384, 385, 510, 511, 512, 513, 514};

TEST(ResidueTest, PromptsOfEveryLengthModulo4And128AreAnsweredWordForWord) {
  SweepConfig config;
  config.residues = 1024;
  config.tokenizer_dir = kNeedleTiny;
  config.concurrency = 2;
  const auto tokenizer = Tokenizer::Load(config.tokenizer_dir + "/tokenizer.json");
  const auto lexicon = LexiconForModel(config.tokenizer_dir);
  ASSERT_TRUE(tokenizer.ok() && lexicon.ok());
  const NeedleGenerator generator(*lexicon, TokenCounter{.tokenizer = &*tokenizer});
  const bool all = GetEnvironment("LODESTONE_LONG_TESTS") == "1";
  auto questions = all ? MakeSweepQuestions(config, generator)
                       : MakeResidueQuestions(config, kShortForm, generator);
  ASSERT_TRUE(questions.ok()) << questions.status();
  const auto count = static_cast<int>(questions->size());
  ASSERT_EQ(count, all ? 128 : 8);

  const auto cluster = RunningCluster::Start({"--max-context", "2048"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const OpenAiClient client(HttpClient(*ParseHttpUrl((*cluster)->url())));
  const SweepTable table =
      AskAll(config, client, "needle-tiny", std::move(*questions), [](const SweepCell&) {});
  EXPECT_EQ(table.found(), count) << DescribeSweep(table);
  EXPECT_EQ(table.word_for_word(), count) << DescribeSweep(table);
  EXPECT_EQ(table.of_wanted_length(), count) << DescribeSweep(table);
}

}  // namespace
}  // namespace lodestone

#include "cli/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

namespace lodestone {
namespace {

using ::testing::HasSubstr;

GenerateOutput Output() {
  return {.tokens = {{.id = 5, .index = 0, .logprob = -0.5F}, {.id = 6, .index = 1, .logprob = -1}},
          .finish = FinishReason::kLength};
}

TEST(DifferenceTest, EqualAnswersHaveNone) { EXPECT_EQ(DifferenceOf(Output(), Output()), ""); }

TEST(DifferenceTest, OneBitOfALogprobIsADifference) {
  GenerateOutput changed = Output();
  float& logprob = changed.tokens[1].logprob;
  logprob = std::bit_cast<float>(std::bit_cast<uint32_t>(logprob) + 1);
  EXPECT_THAT(DifferenceOf(changed, Output()), HasSubstr("log-probability of new token 1"));
}

TEST(DifferenceTest, NamesTheFirstTokenThatDiffers) {
  GenerateOutput changed = Output();
  changed.tokens[1].id = 9;
  EXPECT_THAT(DifferenceOf(changed, Output()), HasSubstr("new token 1 is 9"));
}

TEST(DifferenceTest, MissingTokensAndOtherEndsCount) {
  GenerateOutput fewer = Output();
  fewer.tokens.pop_back();
  EXPECT_THAT(DifferenceOf(fewer, Output()), HasSubstr("1 new tokens, one process has 2"));
  GenerateOutput stopped = Output();
  stopped.finish = FinishReason::kStop;
  EXPECT_NE(DifferenceOf(stopped, Output()), "");
}

TEST(VerifyInputsTest, PromptsHaveTheirLengthsAndAreTheSameEveryTime) {
  VerifyConfig config;
  const std::vector<int64_t> lengths = {1, 7, 300};
  const auto inputs = MakeVerifyInputs(config, lengths, 1024);
  const auto again = MakeVerifyInputs(config, lengths, 1024);
  ASSERT_TRUE(inputs.ok() && again.ok());
  for (size_t i = 0; i < lengths.size(); ++i) {
    EXPECT_EQ(std::ssize(inputs->at(i).tokens), lengths[i]);
    EXPECT_EQ(inputs->at(i).tokens, again->at(i).tokens);
    EXPECT_EQ(inputs->at(i).sampling.max_new_tokens, 16);
    EXPECT_TRUE(inputs->at(i).sampling.ignore_eos);
    for (int32_t token : inputs->at(i).tokens) EXPECT_TRUE(token >= 0 && token < 1024);
  }
}

TEST(VerifyInputsTest, NeedlePromptsAreExactlyAsLongAsAsked) {
  VerifyConfig config;
  config.needle = true;
  config.cluster.model = LODESTONE_SOURCE_DIR "/models/needle-tiny";
  const std::vector<int64_t> lengths = {301, 1027};
  const auto inputs = MakeVerifyInputs(config, lengths, 1024);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->at(0).tokens.size(), 301u);
  EXPECT_EQ(inputs->at(1).tokens.size(), 1027u);
}

TEST(VerifyInputsTest, ImpossibleNumbersAreRefused) {
  VerifyConfig config;
  config.batch = 0;
  EXPECT_TRUE(
      absl::IsInvalidArgument(MakeVerifyInputs(config, std::vector<int64_t>{1}, 1024).status()));
}

TEST(SingleProcessOptionsTest, FlagsMeanWhatTheyMeanToAWorker) {
  ClusterFlags flags;
  flags.model = LODESTONE_SOURCE_DIR "/models/needle-tiny";
  flags.index_k = "fp8";
  flags.numerics = "plain";
  flags.memory = "256MiB";
  const auto options = SingleProcessOptions(flags);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->index_key, IndexKeyFormat::kFp8);
  EXPECT_EQ(options->numerics, Numerics::kPlain);
  EXPECT_EQ(options->memory_limit_bytes, int64_t{256} << 20);
  flags.device = "cuda:1,cuda:0";
  EXPECT_EQ(SingleProcessOptions(flags)->device, DeviceId{.cuda = 1});
  flags.index_k = "int3";
  EXPECT_FALSE(SingleProcessOptions(flags).ok());
}

TEST(ClusterFlagsTest, DevicesAreAListOfNames) {
  ClusterFlags flags;
  flags.model = LODESTONE_SOURCE_DIR "/models/needle-tiny";
  EXPECT_TRUE(flags.Validate().ok());
  EXPECT_TRUE(flags.ToClusterOptions().devices.empty());
  flags.device = "cuda:0,cpu";
  EXPECT_TRUE(flags.Validate().ok());
  EXPECT_EQ(flags.ToClusterOptions().devices, (std::vector<std::string>{"cuda:0", "cpu"}));
  flags.device = "cuda:0,gpu";
  EXPECT_NE(std::string(flags.Validate().message()).find("'gpu'"), std::string::npos);
}

}  // namespace
}  // namespace lodestone

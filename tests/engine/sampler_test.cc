#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/random.h"

namespace lodestone {
namespace {

const std::vector<int32_t> kEos = {1};

int32_t Sample(std::vector<float> logits, const SamplingParams& params,
               std::vector<int32_t> prompt = {}, std::vector<int32_t> generated = {}) {
  return SampleToken(logits, params, {prompt, generated, kEos}).value().id;
}

TEST(SamplerTest, GreedyTakesTheLargestLogitAndTheLowerIdOfATie) {
  EXPECT_EQ(Sample({0, 3, 5, 5, 1}, {}), 2);
}

TEST(SamplerTest, DrawFollowsTheSoftmaxOfTheLogits) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  SamplingParams params{.temperature = 1};
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int seed = 0; seed < kDraws; ++seed) {
    params.seed = static_cast<uint64_t>(seed);
    ++counts[Sample(logits, params)];
  }
  // Standard deviation of a share is below 0.0025.
  EXPECT_NEAR(counts[0] / double{kDraws}, 1.0 / 8, 0.01);
  EXPECT_NEAR(counts[1] / double{kDraws}, 2.0 / 8, 0.01);
  EXPECT_NEAR(counts[2] / double{kDraws}, 5.0 / 8, 0.01);
}

// Whatever is left out because it is improbable, and whatever a filter needs no order for.
TEST(SamplerTest, TopKOfALargeVocabularyDrawsAsFromItsOwnTokensAlone) {
  std::vector<float> few = {3, 2.5f, 2.5f, 1}, many(50'000, -200.0f);
  for (size_t i = 0; i < many.size(); i += 7) many[i] = 0.5f;
  for (size_t i = 0; i < few.size(); ++i) many[1000 * (i + 1)] = few[i];
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const int32_t want = Sample(few, {.temperature = 0.7, .seed = seed});
    EXPECT_EQ(Sample(many, {.temperature = 0.7, .top_k = 4, .seed = seed}), 1000 * (want + 1));
  }
}

TEST(SamplerTest, SameSeedAndIndexGiveTheSameTokenWhateverCameBefore) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const SamplingParams params{.temperature = 1, .seed = 42};
  EXPECT_EQ(Sample(logits, params, {1, 2, 3}, {4, 5}), Sample(logits, params, {9}, {8, 7}));
}

TEST(SamplerTest, TopKTopPAndMinPLeaveOnlyTheirCandidates) {
  const std::vector<float> logits = {0, 4, 3, 2, 1};
  for (uint64_t seed = 0; seed < 500; ++seed) {
    EXPECT_LE(Sample(logits, {.temperature = 1, .top_k = 2, .seed = seed}), 2);
    EXPECT_GE(Sample(logits, {.temperature = 1, .top_k = 2, .seed = seed}), 1);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0.5, .seed = seed}), 1);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .min_p = 0.5, .seed = seed}), 1);
  }
}

TEST(SamplerTest, RepetitionPenaltySeesPromptAndAnswerThePresenceOneTheAnswerOnly) {
  EXPECT_EQ(Sample({2, 3, 2.9f}, {.repetition_penalty = 2}, {1}), 2);
  EXPECT_EQ(Sample({2, 3, 2.9f}, {.repetition_penalty = 2}, {}, {1}), 2);
  EXPECT_EQ(Sample({2, 3, 2.9f}, {.presence_penalty = 2}, {1}), 1);
  EXPECT_EQ(Sample({2, 3, 2.9f}, {.presence_penalty = 2}, {}, {1}), 2);
}

TEST(SamplerTest, FrequencyPenaltyGrowsWithTheCount) {
  EXPECT_EQ(Sample({0, 3, 2}, {.frequency_penalty = 0.6}, {}, {1}), 1);
  EXPECT_EQ(Sample({0, 3, 2}, {.frequency_penalty = 0.6}, {}, {1, 1}), 2);
}

TEST(SamplerTest, LogitBiasMovesTheChoice) {
  EXPECT_EQ(Sample({0, 3, 2}, {.logit_bias = {{2, 5.0f}}}), 2);
}

TEST(SamplerTest, StopTokensAreExcludedBelowTheMinimumLength) {
  EXPECT_EQ(Sample({0, 9, 5, 7}, {.stop_token_ids = {3}, .min_new_tokens = 1}), 2);
  EXPECT_EQ(Sample({0, 9, 5, 7}, {.stop_token_ids = {3}, .min_new_tokens = 1}, {}, {0}), 1);
}

TEST(SamplerTest, LogprobsAreOfTheRawDistribution) {
  std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  const SamplingParams params{.logprobs = true, .top_logprobs = 2, .logit_bias = {{0, 50.0f}}};
  const GeneratedToken token = SampleToken(logits, params, {{}, {}, kEos}).value();
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob, std::log(1.0 / 8), 1e-6);
  ASSERT_EQ(token.top_logprobs.size(), 2u);
  EXPECT_EQ(token.top_logprobs[0].token, 2);
  EXPECT_NEAR(token.top_logprobs[0].logprob, std::log(5.0 / 8), 1e-6);
  EXPECT_EQ(token.top_logprobs[1].token, 1);
}

TEST(SamplerTest, LogitThatIsNotFiniteIsAnInternalError) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = {0, bad};
    EXPECT_EQ(SampleToken(logits, {}, {}).status().code(), absl::StatusCode::kInternal);
  }
}

TEST(SamplerTest, ExcludingTheWholeVocabularyStillChoosesAToken) {
  SamplingParams params{.stop_token_ids = {0, 1, 2}, .min_new_tokens = 1};
  EXPECT_EQ(Sample({1, 2, 3}, params), 0);
  params.temperature = 1;
  params.top_p = 0.5;
  params.min_p = 0.1;
  EXPECT_EQ(Sample({1, 2, 3}, params), 0);
}

TEST(SamplerTest, FinishReasonsInOrderOfPrecedence) {
  const SamplingParams params{.stop_token_ids = {7}, .max_new_tokens = 3};
  EXPECT_EQ(FinishAfter(1, 1, params, kEos), FinishReason::kStop);
  EXPECT_EQ(FinishAfter(7, 3, params, kEos), FinishReason::kStop);
  EXPECT_EQ(FinishAfter(5, 3, params, kEos), FinishReason::kLength);
  EXPECT_EQ(FinishAfter(5, 2, params, kEos), FinishReason::kNone);
  SamplingParams ignoring = params;
  ignoring.ignore_eos = true;
  EXPECT_EQ(FinishAfter(1, 1, ignoring, kEos), FinishReason::kNone);
}

struct BadParams {
  SamplingParams params;
  std::string names;
};

TEST(SamplerTest, EveryParameterOutOfRangeIsNamedWithItsValue) {
  const std::vector<BadParams> cases = {
      {{.temperature = -1}, "temperature is -1"},
      {{.temperature = std::nan("")}, "temperature"},
      {{.top_p = 1.5}, "top_p is 1.5"},
      {{.top_k = -2}, "top_k is -2"},
      {{.min_p = 2}, "min_p is 2"},
      {{.stop_token_ids = {99}}, "stop_token_ids has token id 99"},
      {{.max_new_tokens = 0}, "max_new_tokens is 0"},
      {{.top_logprobs = 21}, "top_logprobs is 21"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.presence_penalty = 3}, "presence_penalty is 3"},
      {{.logit_bias = {{-1, 0.0f}}}, "logit_bias has token id -1"},
      {{.logit_bias = {{1, 1000.0f}}}, "logit_bias is 1000"},
  };
  for (const BadParams& bad : cases) {
    const absl::Status status = CheckSamplingParams(bad.params, 50);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.names;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(bad.names));
  }
  EXPECT_TRUE(CheckSamplingParams({}, 50).ok());
}

TEST(RandomTest, UniformIsInRangeAndNeighbouringSeedsAreUnrelated) {
  double correlation = 0;
  for (uint64_t counter = 0; counter < 20000; ++counter) {
    const double a = RandomUniform(1, counter);
    const double b = RandomUniform(2, counter);
    ASSERT_GE(a, 0);
    ASSERT_LT(a, 1);
    correlation += (a - 0.5) * (b - 0.5);
  }
  EXPECT_NEAR(correlation / 20000 * 12, 0, 0.03);
}

}  // namespace
}  // namespace lodestone

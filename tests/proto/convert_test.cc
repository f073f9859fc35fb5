#include "proto/convert.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace lodestone {
namespace {

std::string Sent(const std::string& message) {
  return ToProto(absl::InvalidArgumentError(message)).message();
}

TEST(ConvertTest, CharactersStayAndBrokenOnesBecomeQuestionMarks) {
  EXPECT_EQ(Sent("naïve 针 🧭"), "naïve 针 🧭");
  EXPECT_EQ(Sent("cut \xe9\x92"), "cut ??");
  EXPECT_EQ(Sent("\xff\xc0\x80\xed\xa0\x80\xf5"), "???????");
  EXPECT_EQ(Sent("\xf0\x9f\xa7"), "???");
}

TEST(ConvertTest, AnyStatusArrives) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string message(random() % 12, '\0');
    for (char& c : message) c = static_cast<char>(random());
    v1::Status arrived;
    ASSERT_TRUE(arrived.ParseFromString(ToProto(absl::InternalError(message)).SerializeAsString()));
    EXPECT_EQ(FromProto(arrived).code(), absl::StatusCode::kInternal);
  }
}

TEST(ConvertTest, SamplingParamsSurviveTheRoundTrip) {
  const SamplingParams params{.temperature = 0.7,
                              .top_p = 0.9,
                              .top_k = 40,
                              .min_p = 0.05,
                              .seed = ~uint64_t{0},
                              .stop_token_ids = {1, 7},
                              .ignore_eos = true,
                              .max_new_tokens = 12,
                              .min_new_tokens = 3,
                              .logprobs = true,
                              .top_logprobs = 5,
                              .repetition_penalty = 1.2,
                              .presence_penalty = -1,
                              .frequency_penalty = 0.5,
                              .logit_bias = {{3, -2.0f}, {900, 4.0f}}};
  const SamplingParams back = FromProto(ToProto(params));
  EXPECT_EQ(back.temperature, params.temperature);
  EXPECT_EQ(back.top_p, params.top_p);
  EXPECT_EQ(back.top_k, params.top_k);
  EXPECT_EQ(back.min_p, params.min_p);
  EXPECT_EQ(back.seed, params.seed);
  EXPECT_EQ(back.stop_token_ids, params.stop_token_ids);
  EXPECT_EQ(back.ignore_eos, params.ignore_eos);
  EXPECT_EQ(back.max_new_tokens, params.max_new_tokens);
  EXPECT_EQ(back.min_new_tokens, params.min_new_tokens);
  EXPECT_EQ(back.logprobs, params.logprobs);
  EXPECT_EQ(back.top_logprobs, params.top_logprobs);
  EXPECT_EQ(back.repetition_penalty, params.repetition_penalty);
  EXPECT_EQ(back.presence_penalty, params.presence_penalty);
  EXPECT_EQ(back.frequency_penalty, params.frequency_penalty);
  EXPECT_EQ(back.logit_bias, params.logit_bias);
}

TEST(ConvertTest, AbsentSamplingFieldsAreOff) {
  const SamplingParams params = FromProto(v1::SamplingParams());
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.repetition_penalty, 1);
}

}  // namespace
}  // namespace lodestone

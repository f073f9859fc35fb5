#include <cmath>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// What each cache format costs on the trained model: the error of logits against fp32 by an
// independent implementation, relative, in the L2 norm. A rotation where none belongs, or a scale
// of the wrong group, multiplies these errors; the format itself must not.
namespace lodestone {
namespace {

constexpr int64_t kLength = 511;
constexpr int64_t kChunk = 512;

// Measured on this prompt: 0.0026 to 0.0052. Most of it is that activations are bf16, so the
// formats hardly differ; the bound is twice the largest.
constexpr double kMaxError = 0.01;

class FormatErrorTest : public ::testing::TestWithParam<FormatChoice> {};

TEST_P(FormatErrorTest, StaysWithinItsBoundAndAnswersRight) {
  const GoldenCase golden = ExactGolden("needle-tiny", kLength);
  const LoadedModel& model = TestModel("needle-tiny", "cpu");
  ModelRunner runner(model, model.ops, GetParam(),
                     {.num_seqs = 1, .max_context = kLength + 16, .max_tokens = kChunk});
  const GoldenRun run = RunGoldenCase(runner, golden, kChunk);
  const double prefill = RelativeL2(run.logits_last, golden["logits_last"].Floats());
  const double decode = RelativeL2(run.greedy_logits, golden["greedy.logits"].Floats());
  std::cout << "error of logits: prefill " << prefill << ", decode " << decode << "\n";
  EXPECT_LE(prefill, kMaxError);
  EXPECT_LE(decode, kMaxError);
  const GoldenTolerance greedy_only{.logits = HUGE_VAL,
                                    .decode_step = HUGE_VAL,
                                    .hidden_norm = HUGE_VAL,
                                    .hidden_last = HUGE_VAL,
                                    .scores = HUGE_VAL,
                                    .selections = false};
  EXPECT_THAT(Differences(golden, run, greedy_only), ::testing::IsEmpty());
}

constexpr FormatChoice Plain(KvFormat kv, IndexKeyFormat index_key) {
  return {Numerics::kPlain, kv, index_key};
}

INSTANTIATE_TEST_SUITE_P(All, FormatErrorTest,
                         ::testing::Values(Plain(KvFormat::kBf16, IndexKeyFormat::kBf16),
                                           Plain(KvFormat::kBf16, IndexKeyFormat::kFp8),
                                           Plain(KvFormat::kBf16, IndexKeyFormat::kFp4),
                                           Plain(KvFormat::kFp8, IndexKeyFormat::kBf16),
                                           Plain(KvFormat::kFp8, IndexKeyFormat::kFp8),
                                           Plain(KvFormat::kFp8, IndexKeyFormat::kFp4)),
                         [](const auto& formats) {
                           return "kv_" + std::string(Name(formats.param.kv)) + "_index_" +
                                  std::string(Name(formats.param.index_key));
                         });

}  // namespace
}  // namespace lodestone

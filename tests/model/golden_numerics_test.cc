#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// The rounded modes on the trained model: `plain` gives the answers of fp32, `reference` the values
// of the vendor's code within the scatter of correct implementations (tests/golden/MANIFEST.md).
namespace lodestone {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kChunk = 512;

GoldenRun RunNeedle(const GoldenCase& golden, const FormatChoice& formats) {
  const LoadedModel& model = TestModel("needle-tiny", "cpu");
  const int64_t length = golden["input_ids"].num_elements();
  ModelRunner runner(model, model.ops, formats,
                     {.num_seqs = 1, .max_context = length + 16, .max_tokens = kChunk});
  return RunGoldenCase(runner, golden, kChunk);
}

class PlainNumericsTest : public ::testing::TestWithParam<int64_t> {};

// Values are bf16 here, so only the continuation is compared: the right answer of a needle prompt.
TEST_P(PlainNumericsTest, GreedyContinuationEqualsThatOfFp32) {
  const GoldenCase golden = ExactGolden("needle-tiny", GetParam());
  const GoldenRun run = RunNeedle(golden, {.numerics = Numerics::kPlain});
  const GoldenTolerance greedy_only{.logits = HUGE_VAL,
                                    .decode_step = HUGE_VAL,
                                    .hidden_norm = HUGE_VAL,
                                    .hidden_last = HUGE_VAL,
                                    .scores = HUGE_VAL,
                                    .missed = 0.02,
                                    .selections = false};
  EXPECT_THAT(Differences(golden, run, greedy_only), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Needle, PlainNumericsTest,
                         ::testing::Values(127, 128, 129, 511, 1027, 4500, 10500));

class ReferenceNumericsTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ReferenceNumericsTest, AgreesWithTheVendorsRounding) {
  const int64_t length = GetParam();
  const GoldenCase golden{GoldenFileOf("reference/needle-tiny", length),
                          "L" + std::to_string(length) + "."};
  const GoldenRun run = RunNeedle(golden, {.numerics = Numerics::kReference});
  // Logits: the gate of MANIFEST.md. One flipped bf16 value may flip an expert or an entry, which
  // moves single positions and steps, and scores (signed sums that nearly cancel), far more than
  // the logits as a whole. Greedy tokens are stable for the needle prompts only.
  const GoldenTolerance tolerance{.logits = 1e-2,
                                  .decode_step = 0.1,
                                  .hidden_norm = 1e-2,
                                  .hidden_outliers = 0.03,
                                  .hidden_last = 1e-2,
                                  .scores = 0.2,
                                  .missed = 0.06,
                                  .selections = false,
                                  .greedy = length >= 127};
  EXPECT_THAT(Differences(golden, run, tolerance), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Needle, ReferenceNumericsTest,
                         ::testing::Values(1, 5, 127, 128, 129, 511, 1027, 4500));

// The vendor's FP4 step makes every index key representable in fp4 rows, so storing them so changes
// nothing; the FP8 step does the same for latents.
TEST(ReferenceNumericsTest, LosslessFormatsGiveTheSameBits) {
  const GoldenCase golden = ExactGolden("needle-tiny", 511);
  const GoldenRun bf16 = RunNeedle(golden, {.numerics = Numerics::kReference});
  const GoldenRun small = RunNeedle(
      golden,
      {.numerics = Numerics::kReference, .kv = KvFormat::kFp8, .index_key = IndexKeyFormat::kFp4});
  EXPECT_EQ(bf16.logits_last, small.logits_last);
  EXPECT_EQ(bf16.greedy_logits, small.greedy_logits);
  EXPECT_EQ(bf16.selected, small.selected);
}

}  // namespace
}  // namespace lodestone

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/backend/mirror_ops.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// Whole passes on the CUDA ops, op by op with caches in host memory: golden values, and results
// that depend on a sequence's tokens alone, bit for bit.
namespace lodestone {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kChunk = 512;

const LoadedModel& CudaModel(const std::string& model) {
  static std::map<std::string, std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<LoadedModel>& loaded = models[model];
  if (loaded == nullptr) {
    loaded = std::make_unique<LoadedModel>(model == "mini" ? MiniDirectory() : NeedleDirectory(),
                                           Mirror());
  }
  return *loaded;
}

GoldenRun RunNeedle(const GoldenCase& golden, const FormatChoice& formats) {
  const LoadedModel& model = CudaModel("needle");
  const int64_t length = golden["input_ids"].num_elements();
  ModelRunner runner(model, model.ops, formats,
                     {.num_seqs = 1, .max_context = length + 16, .max_tokens = kChunk});
  return RunGoldenCase(runner, golden, kChunk);
}

class CudaPlainGoldenTest : public ::testing::TestWithParam<int64_t> {};

// Values are bf16 here, so only the continuation is compared: the right answer of a needle prompt.
TEST_P(CudaPlainGoldenTest, GreedyContinuationEqualsThatOfFp32) {
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

INSTANTIATE_TEST_SUITE_P(Needle, CudaPlainGoldenTest, ::testing::Values(127, 129, 511, 1027, 4500));

class CudaReferenceGoldenTest : public ::testing::TestWithParam<int64_t> {};

// The tolerances of the CPU backend (tests/model/golden_numerics_test.cc).
TEST_P(CudaReferenceGoldenTest, AgreesWithTheVendorsRounding) {
  const int64_t length = GetParam();
  const GoldenCase golden{GoldenFileOf("reference/needle-tiny", length),
                          "L" + std::to_string(length) + "."};
  const GoldenRun run = RunNeedle(golden, {.numerics = Numerics::kReference});
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

INSTANTIATE_TEST_SUITE_P(Needle, CudaReferenceGoldenTest,
                         ::testing::Values(1, 5, 127, 128, 129, 511, 1027));

TEST(CudaModelTest, LosslessFormatsGiveTheSameBits) {
  const GoldenCase golden = ExactGolden("needle-tiny", 511);
  const GoldenRun bf16 = RunNeedle(golden, {.numerics = Numerics::kReference});
  const GoldenRun small =
      RunNeedle(golden, {.numerics = Numerics::kReference, .index_key = IndexKeyFormat::kFp4});
  EXPECT_EQ(bf16.logits_last, small.logits_last);
  EXPECT_EQ(bf16.greedy_logits, small.greedy_logits);
  EXPECT_EQ(bf16.selected, small.selected);
}

struct Outcome {
  std::vector<float> logits;
  std::vector<std::byte> cache;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Prefill(int64_t length, const FormatChoice& formats, int64_t chunk_tokens) {
  const LoadedModel& model = CudaModel("mini");
  std::vector<int32_t> ids = ExactGolden("mini", 511).Ids("input_ids");
  ids.resize(static_cast<size_t>(length));
  ModelRunner runner(model, model.ops, formats,
                     {.num_seqs = 1, .max_context = length, .max_tokens = length});
  std::vector<float> logits = runner.Prefill(ids, chunk_tokens, length);
  return {std::move(logits), runner.LiveCache(0)};
}

TEST(CudaModelTest, ChunkSizeDoesNotMatter) {
  const FormatChoice plain{.numerics = Numerics::kPlain};
  const FormatChoice small{.numerics = Numerics::kReference,
                           .kv = KvFormat::kFp8,
                           .index_key = IndexKeyFormat::kFp4};
  for (const FormatChoice& formats : {plain, small}) {
    const Outcome whole = Prefill(300, formats, 0);
    for (const int64_t chunk : {5, 128, 129}) {
      const Outcome cut = Prefill(300, formats, chunk);
      EXPECT_EQ(cut.logits, whole.logits) << "chunks of " << chunk;
      EXPECT_TRUE(cut.cache == whole.cache) << "chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace lodestone

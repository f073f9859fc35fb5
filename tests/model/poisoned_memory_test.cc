#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// A pass reads nothing that was not written for it: with NaN in the workspace before every pass and
// in every cache row that nobody wrote, logits and caches are the same to the bit. A row that a
// gather skips, or scratch that is only partly filled, becomes a NaN in the answer.
namespace lodestone {
namespace {

struct Outcome {
  std::vector<float> logits;
  std::vector<std::byte> cache;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome RunModel(const FormatChoice& formats, int64_t length, int64_t chunk,
                 UnwrittenMemory unwritten) {
  const LoadedModel& model = TestModel("mini", "cpu");
  const std::vector<int32_t> ids = ExactGolden("mini", 511).Ids("input_ids");
  ModelRunner runner(
      model, model.ops, formats,
      {.num_seqs = 2, .max_context = 512, .max_tokens = 512, .unwritten = unwritten});
  const auto prompt = std::span(ids).first(static_cast<size_t>(length));
  Outcome outcome{runner.Prefill(prompt, chunk, length), {}};
  for (int step = 0; step < 5; ++step) {
    const ModelRunner::Part next{
        .seq = 0, .ids = std::span(ids).subspan(prompt.size(), 1), .num_logits = 1};
    const std::vector<float> logits = runner.Feed({&next, 1});
    outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
  }
  outcome.cache = runner.LiveCache(0);
  return outcome;
}

struct Formats {
  std::string name;
  FormatChoice choice;
};

class PoisonedMemoryTest : public ::testing::TestWithParam<Formats> {};

TEST_P(PoisonedMemoryTest, ChangesNoBit) {
  for (const int64_t length : {1, 4, 130, 291}) {
    for (const int64_t chunk : {0, 61}) {
      if (chunk > length) continue;
      EXPECT_TRUE(RunModel(GetParam().choice, length, chunk, UnwrittenMemory::kNaN) ==
                  RunModel(GetParam().choice, length, chunk, UnwrittenMemory::kZero))
          << length << " tokens in chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PoisonedMemoryTest,
    ::testing::Values(Formats{"Exact", kExactFormats},
                      Formats{"Plain", {.numerics = Numerics::kPlain}},
                      Formats{"PlainFp8", {Numerics::kPlain, KvFormat::kFp8, IndexKeyFormat::kFp8}},
                      Formats{"PlainFp4",
                              {Numerics::kPlain, KvFormat::kBf16, IndexKeyFormat::kFp4}},
                      Formats{"Reference", {.numerics = Numerics::kReference}}),
    [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace lodestone

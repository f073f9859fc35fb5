#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// Logits and caches depend on a sequence's tokens alone: not on how they are cut into passes, what
// else is in the batch, or the number of threads. Bit for bit.
namespace lodestone {
namespace {

struct Outcome {
  std::vector<float> logits;
  std::vector<std::byte> cache;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::vector<int32_t> Prompt(int64_t length) {
  std::vector<int32_t> ids = ExactGolden("mini", 511).Ids("input_ids");
  ids.resize(static_cast<size_t>(length));
  return ids;
}

Outcome Prefill(const std::vector<int32_t>& ids, const FormatChoice& formats, int64_t chunk_tokens,
                int num_threads) {
  const LoadedModel& model = TestModel("mini", "cpu");
  const auto length = static_cast<int64_t>(ids.size());
  ModelRunner runner(
      model, model.ops, formats,
      {.num_seqs = 1, .max_context = length, .max_tokens = length, .num_threads = num_threads});
  std::vector<float> logits = runner.Prefill(ids, chunk_tokens, length);
  return {std::move(logits), runner.LiveCache(0)};
}

struct Formats {
  std::string name;
  FormatChoice choice;
};

class InvarianceTest : public ::testing::TestWithParam<Formats> {};

TEST_P(InvarianceTest, ChunkSizeDoesNotMatter) {
  for (const int64_t length : {131, 390}) {
    const std::vector<int32_t> ids = Prompt(length);
    const Outcome whole = Prefill(ids, GetParam().choice, 0, 2);
    for (const int64_t chunk : {1, 3, 4, 5, 127, 128, 129, 256}) {
      if (chunk < 5 && length > 131) continue;  // the same borders, many times the passes
      EXPECT_TRUE(Prefill(ids, GetParam().choice, chunk, 2) == whole)
          << length << " tokens in chunks of " << chunk;
    }
  }
}

TEST_P(InvarianceTest, NumberOfThreadsDoesNotMatter) {
  const std::vector<int32_t> ids = Prompt(200);
  const Outcome one = Prefill(ids, GetParam().choice, 64, 1);
  EXPECT_TRUE(Prefill(ids, GetParam().choice, 64, 2) == one);
  EXPECT_TRUE(Prefill(ids, GetParam().choice, 64, 5) == one);
}

// Three sequences of different lengths, their parts in one pass and in changing order.
TEST_P(InvarianceTest, OtherSequencesInTheBatchDoNotMatter) {
  const LoadedModel& model = TestModel("mini", "cpu");
  const std::vector<int32_t> ids = Prompt(400);
  const std::vector<std::span<const int32_t>> prompts = {
      std::span(ids).first(301), std::span(ids).subspan(50, 130), std::span(ids).subspan(99, 5)};
  ModelRunner together(model, model.ops, GetParam().choice,
                       {.num_seqs = 3, .max_context = 301, .max_tokens = 301});
  std::vector<std::vector<float>> logits(3);
  const auto feed = [&](const std::vector<ModelRunner::Part>& parts) {
    const std::vector<float> rows = together.Feed(parts);
    auto next = rows.begin();
    for (const ModelRunner::Part& part : parts) {
      const auto end = next + part.num_logits * model.config.vocab_size;
      auto& sequence = logits[static_cast<size_t>(part.seq)];
      sequence.insert(sequence.end(), next, end);
      next = end;
    }
  };
  feed({{.seq = 0, .ids = prompts[0].first(130), .num_logits = 130},
        {.seq = 2, .ids = prompts[2].first(3), .num_logits = 3}});
  feed({{.seq = 1, .ids = prompts[1].first(129), .num_logits = 129},
        {.seq = 2, .ids = prompts[2].subspan(3, 1), .num_logits = 1},
        {.seq = 0, .ids = prompts[0].subspan(130, 170), .num_logits = 170}});
  feed({{.seq = 2, .ids = prompts[2].last(1), .num_logits = 1},
        {.seq = 0, .ids = prompts[0].last(1), .num_logits = 1},
        {.seq = 1, .ids = prompts[1].last(1), .num_logits = 1}});
  for (size_t seq = 0; seq < 3; ++seq) {
    const Outcome alone =
        Prefill({prompts[seq].begin(), prompts[seq].end()}, GetParam().choice, 0, 2);
    EXPECT_TRUE(logits[seq] == alone.logits) << "sequence " << seq;
    EXPECT_TRUE(together.LiveCache(static_cast<int64_t>(seq)) == alone.cache) << "sequence " << seq;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, InvarianceTest,
    ::testing::Values(Formats{"Exact", kExactFormats},
                      Formats{"Plain", {.numerics = Numerics::kPlain}},
                      Formats{"PlainFp8", {Numerics::kPlain, KvFormat::kFp8, IndexKeyFormat::kFp8}},
                      Formats{"PlainFp4",
                              {Numerics::kPlain, KvFormat::kBf16, IndexKeyFormat::kFp4}},
                      Formats{"Reference", {.numerics = Numerics::kReference}}),
    [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace lodestone

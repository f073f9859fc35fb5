#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/generate.h"

// The cache of a sequence is a function of its delivered tokens: whatever made it, a prompt, single
// steps, or a copy of another worker's rows, the same tokens have the same rows and go on the same
// way.
namespace lodestone {
namespace {

EngineOptions Options(KvFormat kv, IndexKeyFormat index_key) {
  EngineOptions options;
  options.model_dir = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
  options.numerics = Numerics::kPlain;
  options.kv = kv;
  options.index_key = index_key;
  options.num_threads = 2;
  options.memory_limit_bytes = int64_t{128} << 20;
  options.max_sequences = 4;
  options.max_context_tokens = 1024;
  options.max_batch_tokens = 256;
  options.freed_pages = FreedPages::kPoison;
  return options;
}

std::vector<int32_t> Prompt(int64_t length) {
  std::vector<int32_t> tokens = {0};
  uint64_t state = 88172645463325252ull;
  while (std::ssize(tokens) < length) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    tokens.push_back(static_cast<int32_t>(16 + state % 1000));
  }
  return tokens;
}

SamplingParams Sampling(int32_t max_new_tokens) {
  return {
      .ignore_eos = true, .max_new_tokens = max_new_tokens, .logprobs = true, .top_logprobs = 3};
}

std::vector<RowRun> AllRuns(const SequenceCache& cache) {
  std::vector<RowRun> runs = cache.AppendRuns(0, cache.length());
  for (const RowRun& run : cache.FinalRuns(cache.length())) runs.push_back(run);
  return runs;
}

std::vector<std::byte> Bytes(const SequenceCache& cache) {
  std::vector<std::byte> bytes;
  for (const RowRun& run : AllRuns(cache)) {
    for (int64_t row = 0; row < run.num_rows; ++row) {
      for (int part = 0; part < run.num_parts; ++part) {
        const std::byte* begin = run.At(part, row);
        bytes.insert(bytes.end(), begin, begin + run.part_bytes[part]);
      }
    }
  }
  return bytes;
}

// What a hand-off does: the rows of `from`, and nothing else, into an empty cache.
void CopyRows(const SequenceCache& from, SequenceCache& to) {
  ASSERT_TRUE(to.Reserve(from.length()).ok());
  to.SetLength(from.length());
  const std::vector<RowRun> source = AllRuns(from), target = AllRuns(to);
  ASSERT_EQ(source.size(), target.size());
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].bytes(), target[i].bytes());
    for (int part = 0; part < source[i].num_parts; ++part) {
      for (int64_t row = 0; row < source[i].num_rows; ++row) {
        std::memcpy(target[i].At(part, row),
                    source[i].At(part, row),
                    static_cast<size_t>(source[i].part_bytes[part]));
      }
    }
  }
}

struct Formats {
  const char* name;
  KvFormat kv;
  IndexKeyFormat index_key;
};

class CacheContentTest : public testing::TestWithParam<Formats> {
 protected:
  std::unique_ptr<Engine> MakeEngine() const {
    return Engine::Create(Options(GetParam().kv, GetParam().index_key)).value();
  }
  static std::unique_ptr<Sequence> NewSequence(Engine& engine, std::vector<int32_t> tokens,
                                               int32_t num_generated,
                                               const SamplingParams& sampling) {
    return engine.NewSequence(std::move(tokens), num_generated, sampling, 800).value();
  }
  // Computes what is pending; the token after it.
  static StepResult Step(Engine& engine, Sequence& sequence) {
    const StepPart part{&sequence, static_cast<int32_t>(sequence.num_pending())};
    return engine.Step({&part, 1}).value().at(0);
  }
};

// After a stop the last token delivered is not computed yet, or was never delivered: no row of it,
// nor of anything beyond, is in the cache.
TEST_P(CacheContentTest, AfterEachStopItIsThatOfAPrefillOfTheDeliveredTokens) {
  const auto engine = MakeEngine();
  for (int32_t count = 1; count <= 8; ++count) {
    for (const int64_t length : {int64_t{1}, int64_t{123}}) {
      if (length == 1 && count % 4 != 0) continue;  // the border of the first group
      const auto sequence = NewSequence(*engine, Prompt(length), 0, Sampling(count));
      FinishReason finish = FinishReason::kNone;
      while (finish == FinishReason::kNone) finish = Step(*engine, *sequence).finish;
      EXPECT_EQ(finish, FinishReason::kLength);
      ASSERT_EQ(sequence->num_generated(), count);
      ASSERT_EQ(sequence->cache().length(), length + count - 1);
      const auto tokens = sequence->tokens().first(static_cast<size_t>(length + count - 1));
      const auto prefilled = NewSequence(*engine, {tokens.begin(), tokens.end()}, 0, Sampling(1));
      Step(*engine, *prefilled);
      EXPECT_TRUE(Bytes(sequence->cache()) == Bytes(prefilled->cache()))
          << length << " prompt tokens, " << count << " new ones";
    }
  }
}

TEST_P(CacheContentTest, AStopTokenIsInNoRow) {
  const auto engine = MakeEngine();
  const auto free_run = NewSequence(*engine, Prompt(127), 0, Sampling(6));
  while (free_run->num_generated() < 6) Step(*engine, *free_run);
  SamplingParams sampling = Sampling(6);
  sampling.stop_token_ids = {free_run->generated().back()};
  const auto sequence = NewSequence(*engine, Prompt(127), 0, sampling);
  while (Step(*engine, *sequence).finish == FinishReason::kNone) {
  }
  const int64_t delivered = sequence->num_generated() - 1;
  EXPECT_EQ(sequence->cache().length(), 127 + delivered);
}

// Rows saved at every remainder of 4 and of 128 and restored into another worker's pages, where the
// next token and its log-probabilities are those of the worker that never stopped; at every tenth
// place the copy also runs ahead, is thrown away, and the next one is made from the same rows.
TEST_P(CacheContentTest, SavedAndRestoredItContinuesTheSame) {
  constexpr int32_t kSteps = 140;
  const auto engine = MakeEngine();
  const auto other = MakeEngine();
  // So that pages and slots differ.
  const auto tenant = NewSequence(*other, Prompt(250), 0, Sampling(1));
  Step(*other, *tenant);
  const auto sequence = NewSequence(*engine, Prompt(121), 0, Sampling(kSteps));
  std::vector<std::vector<GeneratedToken>> ahead(kSteps + 8);
  StepResult next = Step(*engine, *sequence);
  for (int32_t step = 1; step < kSteps; ++step) {
    const auto tokens = sequence->tokens();
    const auto copy =
        NewSequence(*other, {tokens.begin(), tokens.end()}, step, Sampling(kSteps + 8));
    ASSERT_NO_FATAL_FAILURE(CopyRows(sequence->cache(), copy->cache()));
    const GeneratedToken restored = Step(*other, *copy).token;
    for (int32_t i = 1; step % 10 == 0 && i < 6; ++i) {
      ahead[static_cast<size_t>(step + i)].push_back(Step(*other, *copy).token);
    }
    next = Step(*engine, *sequence);
    ASSERT_EQ(restored, next.token)
        << "restored at " << sequence->cache().length() - 1 << " tokens";
    for (const GeneratedToken& token : ahead[static_cast<size_t>(step)]) {
      ASSERT_EQ(token, next.token) << "a copy ran ahead to token " << step;
    }
  }
}

// A finished answer scored again as a prompt gives the log-probabilities that its steps gave, and
// the same next token: where a router replays delivered tokens on another worker, nothing shows.
TEST_P(CacheContentTest, ScoredAgainAnAnswerHasTheLogprobsOfItsSteps) {
  const auto engine = MakeEngine();
  const SamplingParams sampling = Sampling(60);
  const GenerateInput input{Prompt(80), sampling};
  const std::vector<GeneratedToken> answer =
      Generate(*engine, std::span(&input, 1), {}).value()[0].tokens;
  for (int32_t delivered = 1; delivered < 60; delivered += 6) {  // past 97 and 128 tokens
    std::vector<int32_t> tokens = input.tokens;
    for (int32_t i = 0; i < delivered; ++i) tokens.push_back(answer[static_cast<size_t>(i)].id);
    const auto replay = NewSequence(*engine, std::move(tokens), delivered, sampling);
    EXPECT_EQ(Step(*engine, *replay).token, answer[static_cast<size_t>(delivered)]) << delivered;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CacheContentTest,
                         testing::Values(Formats{"Bf16", KvFormat::kBf16, IndexKeyFormat::kBf16},
                                         Formats{"Fp8", KvFormat::kFp8, IndexKeyFormat::kFp8}),
                         [](const auto& formats) { return std::string(formats.param.name); });

}  // namespace
}  // namespace lodestone

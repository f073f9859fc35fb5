#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/generate.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

const std::string kModel = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";

EngineOptions Options() {
  EngineOptions options;
  options.model_dir = kModel;
  options.num_threads = 2;
  options.memory_limit_bytes = int64_t{256} << 20;
  options.max_sequences = 8;
  options.max_context_tokens = 4096;
  options.max_batch_tokens = 256;
  options.freed_pages = FreedPages::kPoison;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options = Options()) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return *std::move(engine);
}

// Token ids that look like nothing in particular, but the same on every call.
std::vector<int32_t> Prompt(int length, uint64_t salt = 0) {
  std::vector<int32_t> tokens = {0};
  uint64_t state = 88172645463325252ull + salt;
  while (std::ssize(tokens) < length) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    tokens.push_back(static_cast<int32_t>(16 + state % 1000));
  }
  return tokens;
}

SamplingParams Greedy(int32_t max_new_tokens) {
  return {
      .ignore_eos = true, .max_new_tokens = max_new_tokens, .logprobs = true, .top_logprobs = 3};
}

std::vector<GeneratedToken> Answer(Engine& engine, const GenerateInput& input, int64_t chunk = 0) {
  return Generate(engine, std::span(&input, 1), {.chunk_tokens = chunk}).value()[0].tokens;
}

TEST(EngineTest, AnswerDoesNotDependOnTheChunkSize) {
  const auto engine = MakeEngine();
  for (int length : {1, 3, 4, 5, 127, 128, 129, 300}) {
    const GenerateInput input{Prompt(length), Greedy(6)};
    const std::vector<GeneratedToken> expected = Answer(*engine, input);
    ASSERT_EQ(expected.size(), 6u);
    for (int64_t chunk : {1, 3, 128}) EXPECT_EQ(Answer(*engine, input, chunk), expected) << length;
  }
}

TEST(EngineTest, AnswerDoesNotDependOnWhatElseRuns) {
  const auto engine = MakeEngine();
  std::vector<GenerateInput> inputs;
  for (int i = 0; i < 10; ++i) {
    SamplingParams sampling = Greedy(4 + i);
    if (i % 2 == 1) {
      sampling.temperature = 1;
      sampling.seed = static_cast<uint64_t>(i);
    }
    inputs.push_back({Prompt(20 + 37 * i, static_cast<uint64_t>(i)), sampling});
  }
  const auto together = Generate(*engine, inputs, {.chunk_tokens = 64, .max_sequences = 8}).value();
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(together[i].tokens, Answer(*engine, inputs[i])) << i;
    EXPECT_EQ(together[i].finish, FinishReason::kLength);
  }
}

TEST(EngineTest, AnswerDoesNotDependOnTheNumberOfThreads) {
  const auto two = MakeEngine();
  EngineOptions options = Options();
  options.num_threads = 1;
  const auto one = MakeEngine(options);
  const GenerateInput input{Prompt(400), Greedy(8)};
  EXPECT_EQ(Answer(*one, input), Answer(*two, input));
}

TEST(EngineTest, ReplayOfDeliveredTokensContinuesTheSameAnswer) {
  const auto engine = MakeEngine();
  SamplingParams sampling = Greedy(12);
  sampling.temperature = 0.9;
  sampling.seed = 7;
  sampling.repetition_penalty = 1.2;
  const std::vector<int32_t> prompt = Prompt(150);
  const std::vector<GeneratedToken> whole = Answer(*engine, {prompt, sampling});
  for (int delivered : {1, 5, 11}) {
    std::vector<int32_t> tokens = prompt;
    for (int i = 0; i < delivered; ++i) tokens.push_back(whole[static_cast<size_t>(i)].id);
    auto sequence =
        engine->NewSequence(tokens, delivered, sampling, std::ssize(tokens) + 12).value();
    const StepPart part{sequence.get(), static_cast<int32_t>(std::ssize(tokens))};
    const StepResult next = engine->Step({&part, 1}).value()[0];
    EXPECT_EQ(next.token, whole[static_cast<size_t>(delivered)]);
  }
}

TEST(EngineTest, RequestsWaitForMemoryAndAllOfItComesBack) {
  EngineOptions options = Options();
  options.max_sequences = 2;
  const auto engine = MakeEngine(options);
  std::vector<GenerateInput> inputs(5, GenerateInput{Prompt(40), Greedy(3)});
  const auto outputs = Generate(*engine, inputs, {.max_sequences = 5}).value();
  for (const GenerateOutput& output : outputs) EXPECT_EQ(output.tokens.size(), 3u);
  EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
}

TEST(EngineTest, PlanEqualsTheRunningLedger) {
  const auto engine = MakeEngine();
  const MemoryPlan plan =
      PlanEngine(Options(), engine->config(), engine->formats(), engine->ops()).value();
  EXPECT_EQ(plan.capacity, engine->cache().ledger().Snapshot().capacity);
  EXPECT_EQ(plan.num_pages, engine->plan().num_pages);
}

TEST(EngineTest, ImpossibleRequestsAreNamedWithBothNumbers) {
  const auto engine = MakeEngine();
  const auto refusal = [&](std::vector<int32_t> tokens, int32_t generated,
                           SamplingParams sampling) {
    const absl::Status status = engine->CheckRequest(tokens, generated, sampling);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({}, 0, Greedy(1)), HasSubstr("empty"));
  EXPECT_THAT(refusal({5, 1024}, 0, Greedy(1)),
              testing::AllOf(HasSubstr("token id 1024"), HasSubstr("vocabulary of 1024")));
  EXPECT_THAT(refusal({-1}, 0, Greedy(1)), HasSubstr("token id -1"));
  EXPECT_THAT(refusal(Prompt(4000), 0, Greedy(97)),
              testing::AllOf(HasSubstr("4097 tokens"), HasSubstr("4096")));
  EXPECT_THAT(refusal(Prompt(3), 3, Greedy(5)), HasSubstr("leave no prompt"));
  EXPECT_THAT(refusal(Prompt(9), 5, Greedy(5)), HasSubstr("max_new_tokens is 5"));
  EXPECT_TRUE(engine->CheckRequest(Prompt(4000), 0, Greedy(96)).ok());
}

TEST(EngineTest, TinyMemoryIsRefusedWithWhatIsNeeded) {
  EngineOptions options = Options();
  options.memory_limit_bytes = int64_t{1} << 20;
  const absl::Status status = Engine::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048576"));
}

TEST(EngineTest, ContextBeyondTheModelIsRefused) {
  EngineOptions options = Options();
  options.max_context_tokens = int64_t{1} << 40;
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lodestone

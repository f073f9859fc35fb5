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

// A fork is a request of its own with the other seed: same first token, and the same answer from a
// copy of the cache.
TEST(EngineTest, ForksAreWhatTheirSeedsAloneWouldGive) {
  const auto engine = MakeEngine();
  SamplingParams sampling = Greedy(9);
  sampling.temperature = 1.3;
  sampling.seed = 1;
  sampling.presence_penalty = 0.5;
  const std::vector<uint64_t> seeds = {2, 3, 4};
  for (const int length : {1, 130, 300}) {
    const std::vector<int32_t> prompt = Prompt(length);
    auto lead = engine->NewSequence(prompt, 0, sampling, length + 9).value();
    lead->ForkWith(seeds);
    int32_t left = length;
    StepResult first;
    while (left > 0) {
      const StepPart part{lead.get(), std::min(left, 100)};
      const std::vector<StepResult> results = engine->Step({&part, 1}).value();
      left -= part.num_tokens;
      if (left == 0) first = results.at(0);
    }
    ASSERT_EQ(first.forks.size(), seeds.size());
    for (size_t i = 0; i < seeds.size(); ++i) {
      SamplingParams own = sampling;
      own.seed = seeds[i];
      const std::vector<GeneratedToken> expected = Answer(*engine, {prompt, own});
      EXPECT_EQ(first.forks[i].token, expected[0]);
      auto cache = engine->cache().MakeSequenceFor(length + 9).value();
      ASSERT_TRUE(cache->Reserve(length).ok());
      cache->CopyFrom(lead->cache());
      Sequence fork(std::move(cache), prompt, 0, own);
      fork.AppendGenerated(first.forks[i].token.id);
      for (size_t token = 1; token < expected.size(); ++token) {
        const StepPart part{&fork, 1};
        EXPECT_EQ(engine->Step({&part, 1}).value().at(0).token, expected[token]) << token;
      }
    }
    EXPECT_EQ(first.token, Answer(*engine, {prompt, sampling})[0]) << "forks change nothing";
  }
}

TEST(EngineTest, LogprobsOfAPromptAreThoseOfItsPrefixes) {
  const auto engine = MakeEngine();
  const std::vector<int32_t> prompt = Prompt(140);
  SamplingParams sampling = Greedy(1);
  std::vector<PromptLogprobs> scored;
  for (const int32_t chunk : {1, 7, 8}) {
    auto sequence = engine->NewSequence(prompt, 0, sampling, 141).value();
    sequence->WantPromptLogprobs();
    while (sequence->num_generated() == 0) {
      const auto pending = static_cast<int32_t>(sequence->num_pending());
      const StepPart part{sequence.get(), std::min(chunk, pending)};
      ASSERT_TRUE(engine->Step({&part, 1}).ok());
    }
    scored.push_back(sequence->prompt_logprobs());
    EXPECT_EQ(sequence->generated()[0], Answer(*engine, {prompt, sampling})[0].id);
  }
  ASSERT_EQ(scored[0].logprobs.size(), prompt.size() - 1);
  ASSERT_EQ(scored[0].top.size(), 3 * (prompt.size() - 1));
  EXPECT_EQ(scored[1], scored[0]);
  EXPECT_EQ(scored[2], scored[0]);
  for (const size_t length : {size_t{1}, size_t{2}, size_t{64}, size_t{128}, size_t{139}}) {
    // The next token, forced by a bias that log-probabilities do not see.
    SamplingParams forced = sampling;
    forced.logit_bias = {{prompt[length], 100.0f}};
    const GeneratedToken next =
        Answer(*engine, {{prompt.begin(), prompt.begin() + static_cast<int>(length)}, forced})[0];
    ASSERT_EQ(next.id, prompt[length]);
    EXPECT_EQ(scored[0].logprobs[length - 1], next.logprob) << length;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(scored[0].top[3 * (length - 1) + i], next.top_logprobs[i]);
    }
  }
}

}  // namespace
}  // namespace lodestone

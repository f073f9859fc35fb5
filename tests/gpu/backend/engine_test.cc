#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/generate.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"

// The engine with everything on cuda:0, against the same engine on the CPU.
namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr DeviceId kGpu{.cuda = 0};

EngineOptions Options(DeviceId device) {
  EngineOptions options;
  options.model_dir = NeedleDirectory();
  options.device = device;
  options.num_threads = 4;
  options.memory_limit_bytes = int64_t{1} << 30;
  options.max_sequences = 8;
  options.max_context_tokens = 12288;
  options.max_batch_tokens = 512;
  options.freed_pages = FreedPages::kPoison;
  return options;
}

std::unique_ptr<Engine> MakeEngine(const EngineOptions& options) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return *std::move(engine);
}

SamplingParams Greedy(int32_t max_new_tokens) {
  return {.ignore_eos = true, .max_new_tokens = max_new_tokens, .logprobs = true};
}

std::vector<int32_t> Ids(const std::vector<GeneratedToken>& tokens) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& token : tokens) ids.push_back(token.id);
  return ids;
}

// Golden needle prompts, greedy: all at once and one by one, in small chunks.
std::vector<GenerateInput> NeedlePrompts(const std::vector<int64_t>& lengths) {
  std::vector<GenerateInput> inputs;
  for (const int64_t length : lengths) {
    inputs.push_back({ExactGolden("needle-tiny", length).Ids("input_ids"), Greedy(16)});
  }
  return inputs;
}

const std::vector<int64_t> kLengths = {127, 128, 129, 511, 1027, 4500, 10500};

TEST(CudaEngineTest, GreedyAnswersAreTheGoldenOnes) {
  const auto engine = MakeEngine(Options(kGpu));
  const auto outputs =
      Generate(*engine, NeedlePrompts(kLengths), {.max_sequences = 8}).value();
  for (size_t i = 0; i < kLengths.size(); ++i) {
    EXPECT_EQ(Ids(outputs[i].tokens), ExactGolden("needle-tiny", kLengths[i]).Ids("greedy.ids"))
        << kLengths[i];
  }
  EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
}

TEST(CudaEngineTest, AnswersDoNotDependOnChunksNorOnWhatElseRuns) {
  const auto engine = MakeEngine(Options(kGpu));
  const std::vector<GenerateInput> inputs = NeedlePrompts({127, 129, 511, 1027});
  const auto together =
      Generate(*engine, inputs, {.chunk_tokens = 100, .max_sequences = 4}).value();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto alone = Generate(*engine, std::span(&inputs[i], 1), {}).value();
    EXPECT_EQ(alone[0].tokens, together[i].tokens) << i;  // with log-probabilities: bit for bit
  }
}

// Every size of batch on the way: sequences begin and end at different steps.
TEST(CudaEngineTest, LargeBatchesAnswerAsAlone) {
  EngineOptions options = Options(kGpu);
  options.memory_limit_bytes = int64_t{8} << 30;
  options.max_sequences = 256;
  options.max_context_tokens = 256;
  const auto engine = MakeEngine(options);
  std::vector<GenerateInput> inputs;
  uint64_t state = 1;
  for (int64_t i = 0; i < 256; ++i) {
    GenerateInput& input = inputs.emplace_back();
    for (int64_t token = 0; token <= i % 135; ++token) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      input.tokens.push_back(static_cast<int32_t>((state >> 33) % 1000));
    }
    input.sampling = Greedy(4 + static_cast<int32_t>(i % 29));
  }
  const auto together = Generate(*engine, inputs, {.max_sequences = 256}).value();
  const auto alone = Generate(*engine, inputs, {.max_sequences = 1}).value();
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
}

// Nine answers of 1 to 70 tokens, five at a time: buckets of 8, 4, 2 and 1 sequences, block tables
// that grow from 1 to 4, 16 and 64 columns, joins and leaves, and prefill in between.
TEST(CudaEngineTest, GraphsAnswerLikeThePlainPathBitForBit) {
  std::vector<GenerateInput> inputs =
      NeedlePrompts({127, 1027, 129, 511, 4500, 128, 511, 127, 1027});
  const int32_t answers[] = {70, 5, 1, 40, 9, 2, 63, 17, 33};
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].sampling.max_new_tokens = answers[i];
    inputs[i].tokens.resize(inputs[i].tokens.size() - i);  // 510: the answer crosses a page
  }
  std::vector<std::vector<GenerateOutput>> outputs;
  for (const bool graphs : {true, false}) {
    EngineOptions options = Options(kGpu);
    options.cuda_graphs = graphs;
    const auto engine = MakeEngine(options);
    outputs.push_back(
        Generate(*engine, inputs, {.chunk_tokens = 256, .max_sequences = 5}).value());
    EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(outputs[0][i].tokens, outputs[1][i].tokens) << i;  // log-probabilities too
  }
}

// Log-probabilities of the two differ by a hundredth or so, so answers are compared only where the
// CPU's best token is well above its second: no card may answer otherwise then.
void ExpectClearlyBest(const std::vector<GeneratedToken>& tokens) {
  for (const GeneratedToken& token : tokens) {
    ASSERT_EQ(token.top_logprobs.size(), 2u);
    EXPECT_GT(token.top_logprobs[0].logprob - token.top_logprobs[1].logprob, 0.25f)
        << "token " << token.index;
  }
}

TEST(CudaEngineTest, EveryStorageFormatAnswersLikeTheCpu) {
  for (const IndexKeyFormat index_key :
       {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4}) {
    for (const KvFormat kv : {KvFormat::kBf16, KvFormat::kFp8}) {
      std::vector<GenerateInput> inputs = NeedlePrompts({129, 511});
      for (GenerateInput& input : inputs) input.sampling.top_logprobs = 2;
      std::vector<std::vector<int32_t>> answers[2];
      for (const DeviceId device : {kHostDevice, kGpu}) {
        EngineOptions options = Options(device);
        options.index_key = index_key;
        options.kv = kv;
        const auto engine = MakeEngine(options);
        const std::vector<GenerateOutput> outputs =
            Generate(*engine, inputs, {.max_sequences = 2}).value();
        for (const GenerateOutput& output : outputs) {
          answers[device.is_host() ? 0 : 1].push_back(Ids(output.tokens));
          if (device.is_host()) ExpectClearlyBest(output.tokens);
        }
      }
      EXPECT_EQ(answers[0], answers[1]) << Name(index_key) << " " << Name(kv);
    }
  }
}

TEST(CudaEngineTest, PlanEqualsTheRunningLedger) {
  const auto engine = MakeEngine(Options(kGpu));
  const MemoryPlan plan =
      PlanEngine(Options(kGpu), engine->config(), engine->formats(), engine->ops()).value();
  EXPECT_EQ(plan.num_pages, engine->plan().num_pages);
  const PoolBytes used = engine->cache().AllocatedBytes();
  for (const MemoryPool pool : {MemoryPool::kLatentsIndexed, MemoryPool::kLatentsDense,
                                MemoryPool::kIndexKeys, MemoryPool::kRingWindows,
                                MemoryPool::kCompressorStates}) {
    EXPECT_EQ(used[pool], plan.capacity[pool]);
  }
}

TEST(CudaEngineTest, ExactNumericsAreRefused) {
  EngineOptions options = Options(kGpu);
  options.numerics = Numerics::kExact;
  const absl::Status status = Engine::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:0"));
}

// Every row of a sequence, packed by one engine and scattered into the other's cache.
void MoveSequence(Engine& from, const SequenceCache& source, Engine& to, SequenceCache& target,
                  int64_t length) {
  ASSERT_TRUE(target.Reserve(length).ok());
  const auto runs_of = [length](const SequenceCache& cache) {
    std::vector<RowRun> runs = cache.AppendRuns(0, length);
    for (const RowRun& run : cache.FinalRuns(length)) runs.push_back(run);
    return runs;
  };
  const std::vector<RowRun> out = runs_of(source);
  const std::vector<RowRun> in = runs_of(target);
  int64_t bytes = 0;
  for (const RowRun& run : out) bytes += run.bytes();
  const Buffer slot = Buffer::Allocate(bytes, SharedMemory(kGpu)).value();
  RowDigests sums[2];
  const auto move = [&](Engine& engine, const std::vector<RowRun>& runs, bool pack,
                        RowDigests& digests) {
    const MemoryPlace place = WorkMemory(engine.options().device);
    const Buffer memory = Buffer::Allocate(sizeof(RowDigests), place).value();
    const Buffer host = Buffer::Allocate(sizeof(RowDigests), SharedMemory(kGpu)).value();
    const MoveRowsParams params{.runs = runs,
                                .slot = slot.data(),
                                .slot_bytes = bytes,
                                .digests = reinterpret_cast<uint64_t*>(memory.data())};
    if (pack) {
      engine.ops().PackRows(params, engine.stream());
    } else {
      engine.ops().ScatterRows(params, engine.stream());
    }
    engine.stream().Copy(host.data(), memory.data(), sizeof(RowDigests));
    ASSERT_TRUE(engine.stream().Synchronize().ok());
    std::memcpy(digests, host.data(), sizeof(RowDigests));
  };
  move(from, out, true, sums[0]);
  move(to, in, false, sums[1]);
  EXPECT_TRUE(std::equal(std::begin(sums[0]), std::end(sums[0]), std::begin(sums[1])));
  target.SetLength(length);
}

// A GPU's prefill decoded by a CPU and the other way round: the caches are the same thing.
TEST(CudaEngineTest, CachesMoveBetweenCpuAndGpu) {
  const auto gpu = MakeEngine(Options(kGpu));
  const auto cpu = MakeEngine(Options(kHostDevice));
  const std::vector<int32_t> prompt = ExactGolden("needle-tiny", 511).Ids("input_ids");
  const std::vector<int32_t> want = ExactGolden("needle-tiny", 511).Ids("greedy.ids");
  for (const bool to_gpu : {false, true}) {
    Engine& prefill = to_gpu ? *cpu : *gpu;
    Engine& decode = to_gpu ? *gpu : *cpu;
    auto source = prefill.NewSequence(prompt, 0, Greedy(16), std::ssize(prompt)).value();
    StepPart part{source.get(), static_cast<int32_t>(std::ssize(prompt))};
    std::vector<int32_t> tokens = prompt;
    tokens.push_back(prefill.Step({&part, 1}).value()[0].token.id);
    auto target = decode.NewSequence(tokens, 1, Greedy(16), std::ssize(prompt) + 16).value();
    MoveSequence(prefill, source->cache(), decode, target->cache(), std::ssize(prompt));
    part = {target.get(), 1};
    while (target->num_generated() < 16) ASSERT_TRUE(decode.Step({&part, 1}).ok());
    EXPECT_EQ(std::vector<int32_t>(target->generated().begin(), target->generated().end()), want)
        << (to_gpu ? "CPU to GPU" : "GPU to CPU");
  }
}

}  // namespace
}  // namespace lodestone

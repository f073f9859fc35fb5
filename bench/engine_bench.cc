// How fast one engine is without a cluster around it: time to the first token of prompts of the
// given lengths and decode behind each, then decode with eight sequences. Usage:
// lodestone-bench-engine MODEL_DIR [PROMPT_TOKENS,... [cpu|cuda:N [GRAPHS]]]
// GRAPHS: on (default) or off.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "engine/engine.h"

namespace lodestone {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size, uint64_t seed) {
  std::vector<int32_t> tokens;
  uint64_t state = 0x9e3779b97f4a7c15ull * (seed + 1);
  for (int64_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

// Computes the prompt and returns the sequence, ready to decode.
std::unique_ptr<Sequence> Prefill(Engine& engine, int64_t length, uint64_t seed,
                                  int32_t max_new_tokens) {
  const SamplingParams sampling{.ignore_eos = true, .max_new_tokens = max_new_tokens};
  auto sequence = engine
                      .NewSequence(RandomPrompt(length, engine.config().vocab_size, seed), 0,
                                   sampling, length + max_new_tokens)
                      .value();
  while (sequence->num_pending() > 0 && sequence->num_generated() == 0) {
    const StepPart part{sequence.get(), static_cast<int32_t>(std::min(
                                            sequence->num_pending(),
                                            engine.options().max_batch_tokens))};
    if (!engine.Step({&part, 1}).ok()) std::abort();
  }
  return sequence;
}

// The median step of sequences that are ready to decode.
void Decode(Engine& engine, std::span<const StepPart> parts, int64_t context, int32_t num_tokens) {
  std::vector<double> seconds;
  for (int32_t step = 0; step < num_tokens; ++step) {
    const double start = Now();
    if (!engine.Step(parts).ok()) std::abort();
    seconds.push_back(Now() - start);
  }
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  std::printf("decode   %2zu sequence(s) at %7lld tokens: %8.1f tokens/s, %7.3f ms a step\n",
              parts.size(), static_cast<long long>(context),
              static_cast<double>(parts.size()) / median, 1e3 * median);
  std::fflush(stdout);
}

void MeasureLength(Engine& engine, int64_t length) {
  constexpr int32_t kTokens = 100;
  const double start = Now();
  const std::unique_ptr<Sequence> sequence = Prefill(engine, length, 1, kTokens + 1);
  const double seconds = Now() - start;
  std::printf("prefill  %7lld tokens in chunks of %lld: %7.3f s, %8.0f tokens/s\n",
              static_cast<long long>(length),
              static_cast<long long>(engine.options().max_batch_tokens), seconds,
              static_cast<double>(length) / seconds);
  const StepPart part{sequence.get(), 1};
  Decode(engine, {&part, 1}, length, kTokens);
}

void MeasureBatch(Engine& engine, int num_sequences, int64_t length) {
  constexpr int32_t kTokens = 100;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<StepPart> parts;
  for (int i = 0; i < num_sequences; ++i) {
    sequences.push_back(Prefill(engine, length, static_cast<uint64_t>(i), kTokens + 1));
    parts.push_back({sequences.back().get(), 1});
  }
  Decode(engine, parts, length, kTokens);
}

// With all of a GPU's memory; on the host with the default.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(EngineOptions options, const char* device) {
  ASSIGN_OR_RETURN(options.device, ParseDevice(device));
  if (!options.device.is_host()) {
    RETURN_IF_ERROR(OpenDevice(options.device));
    ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice(options.device));
    options.memory_limit_bytes = info.free_bytes / 16 * 15;
    options.max_batch_tokens = 8192;
  }
  return Engine::Create(options);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: lodestone-bench-engine MODEL_DIR [PROMPT_TOKENS,... [cpu|cuda:N "
                 "[on|off]]]\n");
    return 2;
  }
  std::vector<int64_t> lengths;
  std::istringstream list(argc > 2 ? argv[2] : "10500");
  for (std::string length; std::getline(list, length, ',');) {
    lengths.push_back(std::max<int64_t>(1, std::atoll(length.c_str())));
  }
  EngineOptions options;
  options.model_dir = argv[1];
  options.max_context_tokens = *std::ranges::max_element(lengths) + 1024;
  options.cuda_graphs = argc <= 4 || std::string(argv[4]) != "off";
  const double began = Now();
  auto engine = MakeEngine(options, argc > 3 ? argv[3] : "cpu");
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().ToString().c_str());
    return 1;
  }
  const MemorySnapshot memory = (*engine)->cache().ledger().Snapshot();
  std::printf("load     %.1f s, %.2f GB of weights, %.2f GB of scratch\n", Now() - began,
              1e-9 * static_cast<double>(memory.used[MemoryPool::kWeights]),
              1e-9 * static_cast<double>(memory.used[MemoryPool::kScratch]));
  Prefill(**engine, lengths.front(), 1, 2);  // first touches
  for (const int64_t length : lengths) MeasureLength(**engine, length);
  MeasureBatch(**engine, 8, 512);
  return 0;
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) { return lodestone::Main(argc, argv); }

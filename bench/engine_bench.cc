// How fast one engine is without a cluster around it: time to the first token of a long prompt, and
// decode with one and with eight sequences. Usage: lodestone-bench-engine MODEL_DIR [PROMPT_TOKENS]

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

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

void Decode(Engine& engine, int num_sequences, int64_t context, int32_t num_tokens) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<StepPart> parts;
  for (int i = 0; i < num_sequences; ++i) {
    sequences.push_back(Prefill(engine, context, static_cast<uint64_t>(i), num_tokens + 1));
    parts.push_back({sequences.back().get(), 1});
  }
  const double start = Now();
  for (int32_t step = 0; step < num_tokens; ++step) {
    if (!engine.Step(parts).ok()) std::abort();
  }
  const double seconds = Now() - start;
  std::printf("decode   %2d sequence(s) at %6lld tokens: %8.1f tokens/s, %6.2f ms a step\n",
              num_sequences, static_cast<long long>(context), num_sequences * num_tokens / seconds,
              1e3 * seconds / num_tokens);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: lodestone-bench-engine MODEL_DIR [PROMPT_TOKENS]\n");
    return 2;
  }
  const int64_t length = argc > 2 ? std::atoll(argv[2]) : 10500;
  EngineOptions options;
  options.model_dir = argv[1];
  options.max_context_tokens = length + 1024;
  auto engine = Engine::Create(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().ToString().c_str());
    return 1;
  }
  for (int run = 0; run < 2; ++run) {
    const double start = Now();
    Prefill(**engine, length, 1, 2);
    const double seconds = Now() - start;
    std::printf("prefill  %lld tokens in chunks of %lld: %6.2f s, %8.0f tokens/s\n",
                static_cast<long long>(length),
                static_cast<long long>((*engine)->options().max_batch_tokens), seconds,
                static_cast<double>(length) / seconds);
  }
  Decode(**engine, 1, 512, 200);
  Decode(**engine, 1, length, 200);
  Decode(**engine, 8, 512, 100);
  return 0;
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) { return lodestone::Main(argc, argv); }

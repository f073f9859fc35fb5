#include "tests/gpu/backend/layer_comparison.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"

namespace lodestone {
namespace {

// The residual streams of every token after every layer, and the log-probability of what follows.
struct Pass {
  std::vector<std::vector<float>> layers;
  float logprob = 0;
};

// `probe` is that of the engine's options.
Pass RunPass(Engine& engine, ForwardProbe& probe, const std::vector<int32_t>& prompt) {
  Pass pass;
  probe.on_layer = [&pass](int, const TensorView& streams) {
    std::vector<uint16_t> bits(static_cast<size_t>(streams.num_elements()));
    CopyBytes(bits.data(), streams.data, streams.num_bytes());
    std::vector<float>& values = pass.layers.emplace_back();
    for (const uint16_t value : bits) values.push_back(Bf16ToFloat(value));
  };
  const SamplingParams greedy{.ignore_eos = true, .max_new_tokens = 1, .logprobs = true};
  auto sequence = engine.NewSequence(prompt, 0, greedy, std::ssize(prompt) + 1).value();
  const StepPart part{sequence.get(), static_cast<int32_t>(std::ssize(prompt))};
  const std::vector<StepResult> results = engine.Step({&part, 1}).value();
  pass.logprob = results[0].token.logprob;
  probe.on_layer = nullptr;
  return pass;
}

// |got - want| / |want| of each token, ascending.
std::vector<double> TokenErrors(const std::vector<float>& got, const std::vector<float>& want,
                                size_t num_tokens) {
  std::vector<double> errors;
  const size_t width = want.size() / num_tokens;
  for (size_t token = 0; token < num_tokens; ++token) {
    double difference = 0, size = 0;
    for (size_t i = token * width; i < (token + 1) * width; ++i) {
      difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      size += std::pow(static_cast<double>(want[i]), 2);
    }
    errors.push_back(std::sqrt(difference / size));
  }
  std::ranges::sort(errors);
  return errors;
}

}  // namespace

std::unique_ptr<Engine> MakeTimedEngine(const EngineOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  CHECK(engine.ok()) << engine.status().ToString();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  std::printf("%s: loaded in %.1f s\n", Name(options.device).c_str(), seconds.count());
  return *std::move(engine);
}

std::vector<int32_t> RandomPrompt(int64_t length, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  uint64_t state = 77;
  for (int64_t i = 0; i < length; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

void CopyBytes(void* to, const void* from, int64_t num_bytes) {
  ASSERT_EQ(cudaMemcpy(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault), cudaSuccess);
}

void ExpectLayersMatchTheCpu(const EngineOptions& options, const std::vector<int64_t>& lengths,
                             const LayerTolerance& tolerance) {
  ForwardProbe probes[2];
  EngineOptions on_cpu = options, on_gpu = options;
  on_cpu.device = kHostDevice;
  on_cpu.probe = &probes[0];
  on_gpu.probe = &probes[1];
  const std::unique_ptr<Engine> cpu = MakeTimedEngine(on_cpu);
  const std::unique_ptr<Engine> gpu = MakeTimedEngine(on_gpu);
  for (const int64_t length : lengths) {
    const std::vector<int32_t> prompt = RandomPrompt(length, cpu->config().vocab_size);
    const Pass want = RunPass(*cpu, probes[0], prompt);
    const Pass got = RunPass(*gpu, probes[1], prompt);
    std::printf("%lld tokens: log-probability of the next %.5f, on the CPU %.5f\n",
                static_cast<long long>(length), static_cast<double>(got.logprob),
                static_cast<double>(want.logprob));
    ASSERT_EQ(got.layers.size(), want.layers.size());
    for (size_t layer = 0; layer < want.layers.size(); ++layer) {
      const std::vector<double> errors =
          TokenErrors(got.layers[layer], want.layers[layer], prompt.size());
      const double median = errors[errors.size() / 2];
      std::printf("  layer %zu: relative error of a token: median %.5f, 90 %% %.5f, worst %.5f\n",
                  layer, median, errors[errors.size() * 9 / 10], errors.back());
      EXPECT_LT(median, layer == 0 ? tolerance.first : tolerance.later)
          << "layer " << layer << ", " << length << " tokens";
      EXPECT_LT(errors.back(), tolerance.any) << "layer " << layer << ", " << length << " tokens";
    }
  }
}

}  // namespace lodestone

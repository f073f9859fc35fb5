#include "tests/gpu/backend/layer_comparison.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "base/logging.h"
#include "model/checkpoint.h"
#include "model/device_weights.h"
#include "tests/gpu/backend/mirror_ops.h"

namespace lodestone {
namespace {

using ::testing::IsEmpty;

Weights LoadForDevice(const std::string& directory, const ModelConfig& config, int num_threads) {
  const Checkpoint checkpoint = Checkpoint::Open(directory, {}).value();
  Weights weights = LoadWeights(config, checkpoint, Mirror(), nullptr, num_threads).value();
  return CopyToDevice(std::move(weights), {.cuda = 0}).value();
}

// The residual streams after every layer, bf16, as the engine's loop computes them.
std::vector<std::vector<uint16_t>> RunEngine(Engine& engine, ForwardProbe& probe,
                                             const std::vector<int32_t>& prompt) {
  std::vector<std::vector<uint16_t>> layers;
  probe.on_layer = [&layers](int, const TensorView& streams) {
    layers.emplace_back(static_cast<size_t>(streams.num_elements()));
    CopyBytes(layers.back().data(), streams.data, streams.num_bytes());
  };
  const SamplingParams greedy{.ignore_eos = true, .max_new_tokens = 1};
  auto sequence = engine.NewSequence(prompt, 0, greedy, std::ssize(prompt) + 1).value();
  const StepPart part{sequence.get(), static_cast<int32_t>(std::ssize(prompt))};
  EXPECT_TRUE(engine.Step({&part, 1}).ok());
  probe.on_layer = nullptr;
  return layers;
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

void CopyBytes(void* to, const void* from, int64_t num_bytes) {
  ASSERT_EQ(cudaMemcpy(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault), cudaSuccess);
}

void ExpectLayersMatchTheCpu(const EngineOptions& options, const std::vector<int64_t>& lengths,
                             const PassTolerance& tolerance) {
  using GoesOn = PairedOps::GoesOn;
  const auto threads = static_cast<int>(std::thread::hardware_concurrency());
  const std::unique_ptr<Ops> cpu_ops = MakeCpuOps(threads);
  const LoadedModel model(options.model_dir, *cpu_ops, threads);
  const Weights device_weights = LoadForDevice(options.model_dir, model.config, threads);
  PairedOps ops(model, Mirror(), device_weights);
  const FormatChoice formats = ChooseFormats(model.config, options.numerics, {}, {}).value();
  ForwardProbe probe;
  EngineOptions probed = options;
  probed.probe = &probe;
  const std::unique_ptr<Engine> engine = MakeTimedEngine(probed);
  for (const int64_t length : lengths) {
    const std::vector<int32_t> prompt = RandomPrompt(length, model.config.vocab_size);
    const auto run = [&](GoesOn which, const PassChoices* choices) {
      return RunPaired(ops, formats, which, choices, prompt, threads);
    };
    std::printf("%lld tokens\n", static_cast<long long>(length));
    const PairedPass cpu = run(GoesOn::kBase, nullptr);
    const PairedPass imposed = run(GoesOn::kOther, &cpu.choices);
    EXPECT_THAT(PassDifferences(model.config, imposed, cpu, tolerance), IsEmpty());
    const PairedPass own = run(GoesOn::kOtherAlone, nullptr);
    EXPECT_TRUE(RunEngine(*engine, probe, prompt) == own.layers)
        << length << " tokens: the engine differs from its ops one by one";
  }
  EXPECT_THAT(OpFaults(ops.TakeDifferences()), IsEmpty());
}

}  // namespace lodestone

#include "cli/synthesize.h"

#include <cstdio>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/write_checkpoint.h"
#include "model/strict_json.h"
#include "model/synthetic_checkpoint.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone synthesize";
constexpr std::string_view kDescription =
    "Writes a checkpoint with random, well-scaled weights in any shape and form that a "
    "config.json\n"
    "describes. It answers nonsense, at the speed and with the memory of a real one.\n"
    "  lodestone synthesize bench/synthetic/flash-4-layers.json /tmp/flash-4 --seed 7   (15.3 GiB)";

int Run(const SynthesizeConfig& config) {
  const absl::StatusOr<std::string> line = Synthesize(config);
  if (!line.ok()) return PrintFailure(kName, line.status());
  std::printf("%s\n", line->c_str());
  return 0;
}

}  // namespace

absl::StatusOr<std::string> Synthesize(const SynthesizeConfig& config) {
  ASSIGN_OR_RETURN(const int num_threads, WriterThreads(config.threads));
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config.model_config));
  absl::StatusOr<CheckpointWriter> writer = CheckpointWriter::Create(
      config.target, text, {{"synthetic_seed", std::to_string(config.seed)}});
  if (absl::IsInvalidArgument(writer.status())) {
    return absl::InvalidArgumentError(config.model_config + ": " +
                                      std::string(writer.status().message()));
  }
  RETURN_IF_ERROR(writer.status());
  ThreadPool pool(num_threads);
  Progress progress;
  RETURN_IF_ERROR(WriteSyntheticTensors(static_cast<uint64_t>(config.seed), *writer, pool,
                                        WriteProgress(progress, config.target)));
  if (!config.tokenizer.empty()) {
    RETURN_IF_ERROR(CopySideFiles(config.tokenizer, config.target));
  }
  return FinishCheckpoint(*writer, config.target);
}

int RunSynthesize(int argc, const char* const* argv) {
  return RunCommand<SynthesizeConfig>(kName, kDescription, argc, argv, Run);
}

}  // namespace lodestone

#include "cli/convert.h"

#include <cstdio>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/write_checkpoint.h"
#include "model/checkpoint.h"
#include "model/convert_checkpoint.h"
#include "model/strict_json.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone convert";
constexpr std::string_view kDescription =
    "Writes a checkpoint in another form: FP8 matrices (e4m3, a power-of-two scale for each\n"
    "128 x 128 tile), FP4 experts (e2m1, a scale for each 32 inputs), or BF16.\n"
    "  lodestone convert models/needle-tiny /tmp/needle-official --to official";

int Run(const ConvertConfig& config) {
  const absl::StatusOr<std::string> line = Convert(config);
  if (!line.ok()) return PrintFailure(kName, line.status());
  std::printf("%s\n", line->c_str());
  return 0;
}

}  // namespace

absl::StatusOr<std::string> Convert(const ConvertConfig& config) {
  ASSIGN_OR_RETURN(const int num_threads, WriterThreads(config.threads));
  ASSIGN_OR_RETURN(const WeightForm form, ParseWeightForm(config.form));
  ASSIGN_OR_RETURN(const Checkpoint source,
                   Checkpoint::Open(config.source, {.overlay = config.overlay}));
  ASSIGN_OR_RETURN(const std::string source_text, ReadTextFile(config.source + "/config.json"));
  ASSIGN_OR_RETURN(const std::string config_text, ConfigInForm(source_text, form));
  ASSIGN_OR_RETURN(CheckpointWriter writer,
                   CheckpointWriter::Create(
                       config.target, config_text,
                       {{"converted_from", source.model_id()}, {"converted_to", config.form}}));
  ThreadPool pool(num_threads);
  Progress progress;
  RETURN_IF_ERROR(ConvertCheckpoint(source, writer, pool, WriteProgress(progress, config.target)));
  RETURN_IF_ERROR(CopySideFiles(config.source, config.target));
  return FinishCheckpoint(writer, config.target);
}

int RunConvert(int argc, const char* const* argv) {
  return RunCommand<ConvertConfig>(kName, kDescription, argc, argv, Run);
}

}  // namespace lodestone

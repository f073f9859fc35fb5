#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "base/config.h"

namespace lodestone {

// `lodestone synthesize`: a checkpoint of any shape with random weights, for tests and benchmarks.
struct SynthesizeConfig {
  std::string model_config;
  std::string target;
  std::string tokenizer;
  int64_t seed = 1;
  int64_t threads = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(model_config, "config-json", "a config.json; its formats are those of the checkpoint",
          "Checkpoint", FieldTraits{.required = true, .positional = true});
    visit(target, "target", "folder to write; must not exist", "Checkpoint",
          FieldTraits{.required = true, .positional = true});
    visit(seed, "seed", "equal seeds make equal checkpoints", "Checkpoint");
    visit(tokenizer, "tokenizer", "folder whose tokenizer files are copied, for serving",
          "Checkpoint");
    visit(threads, "threads", "threads; 0 = one per processor it may use", "Compute");
  }
};

// Writes the checkpoint; returns a line that says what was written. Errors as ParseModelConfig and
// CheckpointWriter.
absl::StatusOr<std::string> Synthesize(const SynthesizeConfig& config);

int RunSynthesize(int argc, const char* const* argv);

}  // namespace lodestone

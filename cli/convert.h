#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "base/config.h"

namespace lodestone {

// `lodestone convert`: the same weights in another form.
struct ConvertConfig {
  std::string source;
  std::string target;
  std::string form;
  std::string overlay;
  int64_t threads = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(source, "source", "checkpoint folder", "Checkpoint",
          FieldTraits{.required = true, .positional = true});
    visit(target, "target", "folder to write; must not exist", "Checkpoint",
          FieldTraits{.required = true, .positional = true});
    visit(form, "to",
          "official: FP8 with FP4 experts; fp8: both FP8; fp4: FP4 experts, the rest BF16; bf16",
          "Checkpoint",
          FieldTraits{.allowed = {"official", "fp8", "fp4", "bf16"}, .required = true});
    visit(overlay, "overlay", "safetensors file whose tensors replace those of the source",
          "Checkpoint");
    visit(threads, "threads", "threads; 0 = one per processor it may use", "Compute");
  }
};

// Writes the checkpoint and copies what else lies in the source folder (tokenizer, generation
// settings, `encoding/`). Returns a line that says what was written. Errors as Checkpoint::Open,
// CheckpointWriter and ConvertCheckpoint.
absl::StatusOr<std::string> Convert(const ConvertConfig& config);

int RunConvert(int argc, const char* const* argv);

}  // namespace lodestone

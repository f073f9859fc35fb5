#pragma once

#include <string>

#include <absl/status/statusor.h>

#include "base/config.h"

namespace lodestone {

// `lodestone inspect`: what a checkpoint holds, after the checks that a worker makes at its start.
struct InspectConfig {
  std::string directory;
  std::string overlay;
  bool verify_weights = false;
  bool tensors = true;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(directory, "directory", "checkpoint folder", "Checkpoint",
          FieldTraits{.required = true, .positional = true});
    visit(overlay, "overlay", "safetensors file whose tensors replace those of the checkpoint",
          "Checkpoint");
    visit(verify_weights, "verify-weights", "hash every byte of the weights into the model id",
          "Checkpoint");
    visit(tensors, "tensors", "list every tensor", "Output");
  }
};

// Errors as Checkpoint::Open.
absl::StatusOr<std::string> DescribeCheckpoint(const InspectConfig& config);

int RunInspect(int argc, const char* const* argv);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "base/config.h"

namespace lodestone {

// `lodestone plan`: what fits into a worker's memory, from config.json alone.
struct PlanConfig {
  std::string model;
  std::string numerics = "auto";
  std::string kv = "auto";
  ByteSize memory{int64_t{1} << 30};
  int64_t context = 0;
  int64_t max_context = 0;
  int64_t max_sequences = 16;
  int64_t threads = 0;
  std::string chunk_tokens = "auto";
  ByteSize staging_slot{int64_t{4} << 20};
  int64_t staging_slots = 4;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(model, "model", "folder with config.json; weights are not read", "Model",
          FieldTraits{.required = true});
    visit(numerics, "numerics", "what is rounded", "Model",
          FieldTraits{.allowed = {"auto", "reference", "plain", "exact"}});
    visit(kv, "kv", "storage of latents", "Cache",
          FieldTraits{.allowed = {"auto", "bf16", "fp8", "f32"}});
    visit(memory, "memory", "bytes of one worker, as its own flag", "Cache");
    visit(context, "ctx", "tokens of one request for the concurrency; 0 = a row of usual ones",
          "Cache");
    visit(max_context, "max-context", "most tokens of one request, as the worker's own flag",
          "Cache");
    visit(max_sequences, "concurrency", "most requests at once: the worker's --max-sequences",
          "Cache");
    visit(threads, "threads",
          "compute threads, as the worker's own flag; 0 = one per processor it may use",
          "Compute");
    visit(chunk_tokens, "chunk-tokens",
          "tokens of one step, as the prefill worker's own flag; auto: 512, as on the CPU (it is "
          "4,096 on a CUDA device); whole: --max-context",
          "Compute");
    visit(staging_slot, "staging-slot", "bytes of one hand-off slot", "Compute");
    visit(staging_slots, "staging-slots", "number of hand-off slots", "Compute");
  }
};

// The table that `plan` prints. Errors as ChooseFormats and PlanEngine; a format that does not fit
// has its reason below the table instead.
absl::StatusOr<std::string> PlanTable(const PlanConfig& config);

// Exit code 1 if no format fits.
int RunPlan(int argc, const char* const* argv);

}  // namespace lodestone

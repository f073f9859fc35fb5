#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/statusor.h>

#include "cli/sweep_config.h"
#include "recall/needle.h"
#include "recall/sweep_table.h"

namespace lodestone {

// One question of a sweep.
struct SweepQuestion {
  NeedlePrompt prompt;
  SweepCell cell;  // length, place, repeat, expected and answer are set
};

// What the config asks for: a grid of lengths and depths, a preset or the residues.
// INVALID_ARGUMENT for lists that cannot be read, lengths that hold no needle, and residues with a
// preset or without a tokenizer.
absl::StatusOr<std::vector<SweepQuestion>> MakeSweepQuestions(const SweepConfig& config,
                                                              const NeedleGenerator& generator);

// `config.repeats` questions at each length, of exactly that many tokens (the generator needs a
// tokenizer); the depths of the config take turns. INVALID_ARGUMENT as above.
absl::StatusOr<std::vector<SweepQuestion>> MakeResidueQuestions(const SweepConfig& config,
                                                                std::span<const int64_t> lengths,
                                                                const NeedleGenerator& generator);

}  // namespace lodestone

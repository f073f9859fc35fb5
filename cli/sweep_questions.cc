#include "cli/sweep_questions.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "cli/length_list.h"

namespace lodestone {
namespace {

// Seeds of plans count up, from a place that --seed says; those of repeats are far from them.
constexpr uint64_t kLengthStride = 1'000'003;
constexpr uint64_t kRepeatStride = 1'000'000'007;

// A question without its prompt: what the presets and the lists come to.
struct Plan {
  std::string place;
  NeedleSpec spec;
};

absl::StatusOr<std::vector<Plan>> GridPlans(const SweepConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, ParseLengthList(config.lengths));
  ASSIGN_OR_RETURN(const std::vector<double> depths, ParseDepthList(config.depths));
  std::vector<Plan> plans;
  uint64_t seed = static_cast<uint64_t>(config.seed) * kLengthStride;
  for (const int64_t length : lengths) {
    for (const double depth : depths) {
      plans.push_back(
          {DepthName(depth), {.prompt_tokens = length, .depth = depth, .seed = seed++}});
    }
  }
  return plans;
}

absl::StatusOr<std::vector<Plan>> ResiduePlans(const SweepConfig& config,
                                               std::span<const int64_t> lengths) {
  if (config.tokenizer_dir.empty()) {
    return absl::InvalidArgumentError("--residues needs lengths to the token: --tokenizer DIR");
  }
  ASSIGN_OR_RETURN(const std::vector<double> depths, ParseDepthList(config.depths));
  std::vector<Plan> plans;
  uint64_t seed = static_cast<uint64_t>(config.seed) * kLengthStride;
  for (const int64_t length : lengths) {
    // 5 depths and 4 residues have no common factor: each residue mod 4 meets each depth.
    const double depth = depths[plans.size() % depths.size()];
    plans.push_back({DepthName(depth),
                     {.prompt_tokens = length, .exact = true, .depth = depth, .seed = seed++}});
  }
  return plans;
}

absl::StatusOr<std::vector<Plan>> PlansOf(const SweepConfig& config) {
  if (config.residues != 0) {
    if (config.preset != "none") {
      return absl::InvalidArgumentError("--residues and --preset " + config.preset +
                                        " are two different sweeps");
    }
    ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, LengthsAround(config.residues, 128));
    return ResiduePlans(config, lengths);
  }
  if (config.preset == "none") return GridPlans(config);
  std::vector<Plan> plans;
  const auto seed = static_cast<uint64_t>(config.seed);
  if (config.preset == "needle") {
    for (const NeedleSpec& spec : NeedlePreset(seed))
      plans.push_back({DepthName(spec.depth), spec});
  } else {
    for (WindowProbe& probe : WindowPreset(seed)) plans.push_back({probe.place, probe.spec});
  }
  return plans;
}

absl::StatusOr<std::vector<SweepQuestion>> QuestionsOf(const SweepConfig& config,
                                                       const std::vector<Plan>& plans,
                                                       const NeedleGenerator& generator) {
  std::vector<SweepQuestion> questions;
  for (const Plan& plan : plans) {
    for (int repeat = 0; repeat < config.repeats; ++repeat) {
      NeedleSpec spec = plan.spec;
      spec.seed += kRepeatStride * static_cast<uint64_t>(repeat);
      if (config.tokenizer_dir.empty()) spec.exact = false;  // lengths are estimates then
      ASSIGN_OR_RETURN(NeedlePrompt prompt, generator.Make(spec));
      SweepCell cell{.length = spec.prompt_tokens,
                     .place = plan.place,
                     .repeat = repeat,
                     .expected = prompt.code,
                     .answer = prompt.answer};
      questions.push_back({std::move(prompt), std::move(cell)});
    }
  }
  return questions;
}

}  // namespace

absl::StatusOr<std::vector<SweepQuestion>> MakeSweepQuestions(const SweepConfig& config,
                                                              const NeedleGenerator& generator) {
  ASSIGN_OR_RETURN(const std::vector<Plan> plans, PlansOf(config));
  return QuestionsOf(config, plans, generator);
}

absl::StatusOr<std::vector<SweepQuestion>> MakeResidueQuestions(const SweepConfig& config,
                                                                std::span<const int64_t> lengths,
                                                                const NeedleGenerator& generator) {
  ASSIGN_OR_RETURN(const std::vector<Plan> plans, ResiduePlans(config, lengths));
  return QuestionsOf(config, plans, generator);
}

}  // namespace lodestone

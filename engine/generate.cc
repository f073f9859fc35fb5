#include "engine/generate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"

namespace lodestone {
namespace {

// The sequences that run at the moment, and what they have produced.
class Run {
 public:
  Run(Engine& engine, std::span<const GenerateInput> inputs, const GenerateOptions& options)
      : engine_(engine), inputs_(inputs), options_(options), outputs_(inputs.size()) {}

  absl::StatusOr<std::vector<GenerateOutput>> ToEnd() {
    while (next_ < inputs_.size() || !running_.empty()) {
      RETURN_IF_ERROR(Admit());
      RETURN_IF_ERROR(Step());
    }
    return std::move(outputs_);
  }

 private:
  struct Running {
    size_t input;
    std::unique_ptr<Sequence> sequence;
  };

  // Starts inputs while they fit; one that must wait is tried again when another has ended.
  absl::Status Admit() {
    while (next_ < inputs_.size() && std::ssize(running_) < options_.max_sequences) {
      const GenerateInput& input = inputs_[next_];
      absl::StatusOr<std::unique_ptr<Sequence>> sequence =
          engine_.NewSequence(input.tokens, 0, input.sampling,
                              WorstCaseTokens(std::ssize(input.tokens), 0, input.sampling));
      if (absl::IsResourceExhausted(sequence.status()) && !running_.empty()) break;
      RETURN_IF_ERROR(sequence.status());
      running_.push_back({next_++, *std::move(sequence)});
    }
    return absl::OkStatus();
  }

  absl::Status Step() {
    const int64_t chunk =
        options_.chunk_tokens > 0 ? options_.chunk_tokens : engine_.options().max_batch_tokens;
    int64_t budget = engine_.options().max_batch_tokens;
    std::vector<StepPart> parts;
    for (const Running& running : running_) {
      const int64_t count = std::min({running.sequence->num_pending(), chunk, budget});
      if (count == 0) break;
      parts.push_back({running.sequence.get(), static_cast<int32_t>(count)});
      budget -= count;
    }
    ASSIGN_OR_RETURN(std::vector<StepResult> results, engine_.Step(parts));
    for (StepResult& result : results) Take(std::move(result));
    return absl::OkStatus();
  }

  void Take(StepResult result) {
    const auto running = std::ranges::find_if(
        running_, [&](const Running& r) { return r.sequence.get() == result.sequence; });
    GenerateOutput& output = outputs_[running->input];
    output.tokens.push_back(std::move(result.token));
    output.finish = result.finish;
    if (result.finish != FinishReason::kNone) running_.erase(running);
  }

  Engine& engine_;
  const std::span<const GenerateInput> inputs_;
  const GenerateOptions options_;
  std::vector<GenerateOutput> outputs_;
  std::vector<Running> running_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<GenerateOutput>> Generate(Engine& engine,
                                                     std::span<const GenerateInput> inputs,
                                                     const GenerateOptions& options) {
  return Run(engine, inputs, options).ToEnd();
}

}  // namespace lodestone

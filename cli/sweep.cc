#include "cli/sweep.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/length_list.h"
#include "cli/progress.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone sweep";
constexpr std::string_view kDescription =
    "Hides one fact in prompts of many lengths, at many depths, and asks for it. Works against "
    "any\n"
    "OpenAI-compatible server.\n"
    "  lodestone sweep --url http://127.0.0.1:8080 --tokenizer models/needle-tiny\n"
    "  lodestone sweep --preset window --repeats 4 --json sweep.json\n"
    "The last line is `N of M found`.";

// A question without its prompt: what the presets and the lists come to.
struct Plan {
  std::string place;
  NeedleSpec spec;
};

absl::StatusOr<std::vector<Plan>> GridPlans(const SweepConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, ParseLengthList(config.lengths));
  ASSIGN_OR_RETURN(const std::vector<double> depths, ParseDepthList(config.depths));
  std::vector<Plan> plans;
  uint64_t seed = static_cast<uint64_t>(config.seed) * 1'000'003;
  for (const int64_t length : lengths) {
    for (const double depth : depths) {
      plans.push_back(
          {DepthName(depth), {.prompt_tokens = length, .depth = depth, .seed = seed++}});
    }
  }
  return plans;
}

absl::StatusOr<std::vector<Plan>> PlansOf(const SweepConfig& config) {
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

// What the questions are made with; the tokenizer outlives the generator.
struct Workshop {
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<NeedleGenerator> generator;
};

absl::StatusOr<Lexicon> LexiconOf(const SweepConfig& config) {
  if (config.lexicon_file.empty()) {
    if (config.tokenizer_dir.empty()) return BuiltInLexicon();
    return LexiconForModel(config.tokenizer_dir);
  }
  std::ifstream stream(config.lexicon_file);
  if (!stream) return absl::NotFoundError("cannot read --model-lexicon " + config.lexicon_file);
  std::ostringstream text;
  text << stream.rdbuf();
  return ParseLexicon(text.str(), config.lexicon_file);
}

absl::StatusOr<std::unique_ptr<Workshop>> MakeWorkshop(const SweepConfig& config) {
  auto workshop = std::make_unique<Workshop>();
  TokenCounter counter;
  if (!config.tokenizer_dir.empty()) {
    ASSIGN_OR_RETURN(workshop->tokenizer,
                     Tokenizer::Load(config.tokenizer_dir + "/tokenizer.json"));
    counter.tokenizer = &*workshop->tokenizer;
  }
  ASSIGN_OR_RETURN(Lexicon lexicon, LexiconOf(config));
  workshop->generator = std::make_unique<NeedleGenerator>(std::move(lexicon), counter);
  return workshop;
}

SweepCell AskOne(const SweepConfig& config, const OpenAiClient& client, const std::string& model,
                 SweepQuestion question) {
  SweepCell cell = std::move(question.cell);
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<ChatAnswer> answer =
      client.Ask(model, question.prompt.content, config.max_tokens, config.timeout);
  cell.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!answer.ok()) {
    cell.outcome = NeedleOutcome::kFailed;
    cell.reply = std::string(answer.status().message());
    return cell;
  }
  cell.reply = answer->text;
  cell.prompt_tokens = answer->prompt_tokens;
  cell.outcome =
      HasCode(answer->text, cell.expected) ? NeedleOutcome::kFound : NeedleOutcome::kMissed;
  return cell;
}

std::string CellLine(const SweepCell& cell, int done, size_t total) {
  char line[160];
  const char* outcome = cell.outcome == NeedleOutcome::kFound    ? "found"
                        : cell.outcome == NeedleOutcome::kMissed ? "missed"
                                                                 : "failed";
  std::snprintf(line, sizeof(line), "%d/%zu  %lld tokens at %s: %s in %.1f s", done, total,
                static_cast<long long>(cell.length), cell.place.c_str(), outcome, cell.seconds);
  return line;
}

absl::Status Print(const SweepConfig& config, const SweepTable& table) {
  if (config.json == "-") {
    std::printf("%s\n", table.ToJson().c_str());
  } else {
    std::printf("%s", table.ToText().c_str());
    if (!config.json.empty()) {
      std::ofstream file(config.json);
      file << table.ToJson() << "\n";
      if (!file.flush()) return absl::UnavailableError("cannot write --json " + config.json);
    }
    for (const SweepCell& cell : table.cells()) {
      if (cell.outcome != NeedleOutcome::kFailed) continue;
      std::printf("failed: %s\n", cell.reply.c_str());
      break;  // the others are in the JSON
    }
  }
  std::printf("%s found\n", table.Summary().c_str());
  return absl::OkStatus();
}

absl::StatusOr<SweepTable> SweepServer(const SweepConfig& config) {
  ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(config.url));
  const OpenAiClient client{HttpClient(std::move(url), config.api_key)};
  ASSIGN_OR_RETURN(const std::unique_ptr<Workshop> workshop, MakeWorkshop(config));
  ASSIGN_OR_RETURN(std::vector<SweepQuestion> questions,
                   MakeSweepQuestions(config, *workshop->generator));
  std::string model = config.served_model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> models,
                     client.Models(std::chrono::seconds(30)));
    model = models.front();
  }
  Progress progress;
  int done = 0;
  const size_t total = questions.size();
  SweepTable table =
      AskAll(config, client, model, std::move(questions),
             [&](const SweepCell& cell) { progress.Update(CellLine(cell, ++done, total)); });
  progress.Clear();
  RETURN_IF_ERROR(Print(config, table));
  return table;
}

int Sweep(const SweepConfig& config) {
  if (config.repeats < 1 || config.concurrency < 1 || config.concurrency > 256) {
    return PrintUsageError(
        kName, absl::InvalidArgumentError(
                   "--repeats is " + std::to_string(config.repeats) + " and --concurrency " +
                   std::to_string(config.concurrency) + "; at least 1 each, at most 256 at once"));
  }
  const absl::StatusOr<SweepTable> table = SweepServer(config);
  if (absl::IsInvalidArgument(table.status())) return PrintUsageError(kName, table.status());
  if (!table.ok()) return PrintFailure(kName, table.status());
  if (table->failed() > 0) return 1;
  return config.require_all && !table->AllFound() ? 1 : 0;
}

}  // namespace

absl::StatusOr<std::vector<SweepQuestion>> MakeSweepQuestions(const SweepConfig& config,
                                                              const NeedleGenerator& generator) {
  ASSIGN_OR_RETURN(const std::vector<Plan> plans, PlansOf(config));
  // Of each repeat: far from the seeds of the plans, which count up.
  constexpr uint64_t kRepeatStride = 1'000'000'007;
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
                     .expected = prompt.code};
      questions.push_back({std::move(prompt), std::move(cell)});
    }
  }
  return questions;
}

SweepTable AskAll(const SweepConfig& config, const OpenAiClient& client, const std::string& model,
                  std::vector<SweepQuestion> questions,
                  const std::function<void(const SweepCell&)>& on_cell) {
  // Answers come in any order; the table is filled in the order of the questions, so that its
  // columns are too.
  std::vector<SweepCell> cells(questions.size());
  std::atomic<size_t> next{0};
  Mutex mutex;
  const auto work = [&] {
    for (size_t i = next++; i < questions.size(); i = next++) {
      cells[i] = AskOne(config, client, model, std::move(questions[i]));
      MutexLock lock(&mutex);
      on_cell(cells[i]);
    }
  };
  std::vector<std::thread> threads;
  const size_t count = std::min(static_cast<size_t>(config.concurrency), questions.size());
  for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  SweepTable table;
  for (SweepCell& cell : cells) table.Add(std::move(cell));
  return table;
}

int RunSweep(int argc, const char* const* argv) {
  return RunCommand<SweepConfig>(kName, kDescription, argc, argv, Sweep);
}

}  // namespace lodestone

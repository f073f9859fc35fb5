#include "cli/sweep.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "cli/cluster.h"
#include "cli/cluster_flags.h"
#include "cli/command.h"
#include "cli/length_list.h"
#include "cli/progress.h"
#include "cli/sweep_output.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone sweep";
constexpr std::string_view kDescription =
    "Hides one fact in prompts of many lengths, at many depths, and asks for it. Works against "
    "any\n"
    "OpenAI-compatible server.\n"
    "  lodestone sweep --url http://127.0.0.1:8080 --tokenizer models/needle-tiny\n"
    "  lodestone sweep --tokenizer models/needle-tiny --preset window --json sweep.json\n"
    "--up starts clusters instead, one for each of --formats, and --svg draws what they found:\n"
    "  lodestone sweep --up models/needle-tiny --formats bf16,fp8,fp4 --svg recall.svg\n"
    "Caches are kept in groups of 4 and 128 tokens; this asks at every place within a group:\n"
    "  lodestone sweep --up models/needle-tiny --residues 1024\n"
    "The last line is `N of M found`; with --json - it goes to stderr, and stdout is JSON lines.";

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
  std::snprintf(line, sizeof(line), "%d/%zu  %lld tokens at %s: %s in %.1f s", done, total,
                static_cast<long long>(cell.length), cell.place.c_str(),
                OutcomeName(cell.outcome).data(), cell.seconds);
  return line;
}

// Every question of the config to one server.
absl::StatusOr<SweepTable> SweepServer(const SweepConfig& config,
                                       std::vector<SweepQuestion> questions, Progress* progress) {
  ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(config.url));
  const OpenAiClient client{HttpClient(std::move(url), config.api_key)};
  std::string model = config.served_model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> models,
                     client.Models(std::chrono::seconds(30)));
    model = models.front();
  }
  int done = 0;
  const size_t total = questions.size();
  return AskAll(config, client, model, std::move(questions),
                [&](const SweepCell& cell) { progress->Update(CellLine(cell, ++done, total)); });
}

// Room for the longest question and its answer, however the server counts.
std::string MaxContext(const SweepConfig& config, const std::vector<SweepQuestion>& questions) {
  int64_t longest = 0;
  for (const SweepQuestion& question : questions) {
    longest = std::max(longest, question.prompt.prompt_tokens);
  }
  return std::to_string(longest + config.max_tokens + 64);
}

// A cluster of this machine for each format, one after another.
absl::StatusOr<std::vector<SweepTable>> SweepOwnClusters(
    const SweepConfig& config, const std::vector<SweepQuestion>& questions, Progress* progress) {
  std::vector<SweepTable> tables;
  const std::string formats = config.formats.empty() ? "bf16" : config.formats;
  for (const std::string_view name : SplitAtCommas(formats)) {
    const std::string format(name);
    ClusterFlags flags;
    flags.model = config.up;
    flags.index_k = format;
    flags.overlay = config.overlay;
    flags.numerics = config.numerics;
    flags.max_context = MaxContext(config, questions);
    RETURN_IF_ERROR(flags.Validate());
    ClusterOptions options = flags.ToClusterOptions();
    options.restart = false;
    progress->Note("index keys as " + format + "; logs in " + options.run_dir);
    ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster,
                     Cluster::Start(
                         std::move(options), [&](std::string_view line) { progress->Note(line); },
                         [&](std::string_view line) { progress->Update(line); }));
    RETURN_IF_ERROR(cluster->WaitUntilReady([] { return false; }));
    SweepConfig one = config;
    one.url = cluster->url();
    one.label = config.label.empty() ? format : format + ", " + config.label;
    ASSIGN_OR_RETURN(SweepTable table, SweepServer(one, questions, progress));
    tables.push_back(std::move(table));
  }
  return tables;
}

absl::StatusOr<std::vector<SweepTable>> SweepAll(SweepConfig config) {
  if (config.tokenizer_dir.empty()) config.tokenizer_dir = config.up;
  RETURN_IF_ERROR(ReadPanels(config.panels).status());  // before the hours that a sweep may take
  ASSIGN_OR_RETURN(const std::unique_ptr<Workshop> workshop, MakeWorkshop(config));
  ASSIGN_OR_RETURN(std::vector<SweepQuestion> questions,
                   MakeSweepQuestions(config, *workshop->generator));
  Progress progress;
  std::vector<SweepTable> tables;
  if (config.up.empty()) {
    ASSIGN_OR_RETURN(SweepTable table, SweepServer(config, std::move(questions), &progress));
    tables.push_back(std::move(table));
  } else {
    ASSIGN_OR_RETURN(tables, SweepOwnClusters(config, questions, &progress));
  }
  progress.Clear();
  RETURN_IF_ERROR(WriteSweeps(config, tables));
  return tables;
}

int Sweep(const SweepConfig& config) {
  if (const absl::Status status = config.Validate(); !status.ok()) {
    return PrintUsageError(kName, status);
  }
  const absl::StatusOr<std::vector<SweepTable>> tables = SweepAll(config);
  if (absl::IsInvalidArgument(tables.status())) return PrintUsageError(kName, tables.status());
  if (!tables.ok()) return PrintFailure(kName, tables.status());
  for (const SweepTable& table : *tables) {
    if (table.failed() > 0 || (config.require_all && !table.AllFound())) return 1;
  }
  return 0;
}

}  // namespace

absl::Status SweepConfig::Validate() const {
  if (repeats < 1 || concurrency < 1 || concurrency > 256) {
    return absl::InvalidArgumentError("--repeats is " + std::to_string(repeats) +
                                      " and --concurrency " + std::to_string(concurrency) +
                                      "; at least 1 each, at most 256 at once");
  }
  if (up.empty() && !(formats.empty() && overlay.empty() && numerics.empty())) {
    return absl::InvalidArgumentError(
        "--formats, --overlay and --numerics are for the clusters of --up; a server at --url has "
        "its own");
  }
  for (const std::string_view format : SplitAtCommas(formats)) {
    if (formats.empty() || format == "bf16" || format == "fp8" || format == "fp4") continue;
    return absl::InvalidArgumentError("--formats has \"" + std::string(format) +
                                      "\", possible are bf16, fp8 and fp4");
  }
  if (!panels.empty() && svg.empty()) {
    return absl::InvalidArgumentError("--panel adds to a heat map: --svg FILE");
  }
  return absl::OkStatus();
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
  SweepTable table(config.residues != 0 ? SweepKind::kResidues : SweepKind::kDepths, config.label);
  for (SweepCell& cell : cells) table.Add(std::move(cell));
  return table;
}

int RunSweep(int argc, const char* const* argv) {
  return RunCommand<SweepConfig>(kName, kDescription, argc, argv, Sweep);
}

}  // namespace lodestone

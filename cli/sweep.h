#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "base/config.h"
#include "cli/openai_client.h"
#include "recall/needle.h"
#include "recall/sweep_table.h"

namespace lodestone {

// `lodestone sweep`: does the server still find a needle at every length and depth?
struct SweepConfig {
  std::string url = "http://127.0.0.1:8080";
  std::string lengths = "300,900,1800,4500,10500";
  std::string depths = "0,0.25,0.5,0.75,1";
  int64_t repeats = 1;
  std::string preset = "none";
  int64_t seed = 1;
  std::string tokenizer_dir;
  std::string lexicon_file;
  std::string json;
  int64_t concurrency = 1;
  int64_t max_tokens = 48;
  std::string served_model;
  std::string api_key;
  std::chrono::milliseconds timeout{600'000};
  bool require_all = false;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(url, "url", "http://HOST:PORT of the server", "Server");
    visit(served_model, "served-model", "name of the model; empty = the first of /v1/models",
          "Server");
    visit(api_key, "api-key", "bearer key of the server", "Server", FieldTraits{.secret = true});
    visit(timeout, "timeout", "longest wait for one answer", "Server");
    visit(concurrency, "concurrency", "questions at once", "Server");
    visit(lengths, "lengths", "prompt lengths in tokens: 300,900 or ranges 508..516", "Needles");
    visit(depths, "depths", "places of the needle: 0 the first line, 1 the last", "Needles");
    visit(repeats, "repeats", "questions per length and depth, each with its own needle",
          "Needles");
    visit(preset, "preset",
          "needle: five lengths at depth 0.05; window: around the 128-token window", "Needles",
          FieldTraits{.allowed = {"none", "needle", "window"}});
    visit(seed, "seed", "equal seeds ask equal questions", "Needles");
    visit(tokenizer_dir, "tokenizer",
          "folder with the model's tokenizer.json, for exact lengths; empty = estimated",
          "Needles");
    visit(lexicon_file, "model-lexicon",
          "words the model knows; empty = lexicon.json beside the tokenizer, else built-in ones",
          "Needles");
    visit(max_tokens, "max-tokens", "longest answer", "Needles");
    visit(json, "json", "file for the result as JSON; - prints it instead of the table", "Output");
    visit(require_all, "require-all", "exit 1 unless every needle is found", "Output");
  }
};

// One question of a sweep.
struct SweepQuestion {
  NeedlePrompt prompt;
  SweepCell cell;  // length, place, repeat and expected are set
};

// INVALID_ARGUMENT for lists that cannot be read or lengths that hold no needle.
absl::StatusOr<std::vector<SweepQuestion>> MakeSweepQuestions(const SweepConfig& config,
                                                              const NeedleGenerator& generator);

// Asks all, `config.concurrency` at once; `on_cell` is called for each answer, one at a time.
SweepTable AskAll(const SweepConfig& config, const OpenAiClient& client, const std::string& model,
                  std::vector<SweepQuestion> questions,
                  const std::function<void(const SweepCell&)>& on_cell);

int RunSweep(int argc, const char* const* argv);

}  // namespace lodestone

#include "cli/sweep_output.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

#include "base/status_macros.h"
#include "recall/heat_map.h"

namespace lodestone {
namespace {

constexpr int kMostLengthsShown = 10;

std::string JsonLines(std::span<const SweepTable> tables) {
  std::string lines;
  for (const SweepTable& table : tables) lines += table.ToJson() + "\n";
  return lines;
}

absl::Status WriteFile(const std::string& flag, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) return absl::UnavailableError("cannot write " + flag + " " + path);
  return absl::OkStatus();
}

// "25 of 25", over all tables.
std::string SummaryOf(std::span<const SweepTable> tables) {
  SweepTable all;
  for (const SweepTable& table : tables) {
    for (const SweepCell& cell : table.cells()) all.Add(cell);
  }
  return all.Summary();
}

std::string ResidueLine(const SweepCell& cell) {
  return "  " + std::to_string(cell.length) +
         " tokens (mod 4 = " + std::to_string(cell.length % 4) +
         ", mod 128 = " + std::to_string(cell.length % 128) + "; the server counted " +
         std::to_string(cell.prompt_tokens) + ") at depth " + cell.place + ": " +
         std::string(OutcomeName(cell.outcome)) + "; wanted \"" + cell.answer + "\", got \"" +
         cell.reply + "\"\n";
}

std::string ResidueFindings(const SweepTable& table) {
  const std::string of = " of " + std::to_string(table.total());
  std::string text = std::to_string(table.word_for_word()) + of + " answers word for word, " +
                     std::to_string(table.of_wanted_length()) + of +
                     " prompts of the wanted length\n";
  int shown = 0;
  for (const SweepCell& cell : table.cells()) {
    const bool right = cell.outcome == NeedleOutcome::kFound && cell.reply == cell.answer &&
                       cell.prompt_tokens == cell.length;
    if (right) continue;
    if (shown++ == kMostLengthsShown) return text + "  and more, see --json\n";
    text += ResidueLine(cell);
  }
  return text;
}

// Why a model that is well may miss all needles, "" if that cannot be.
std::string WordsHint(const SweepConfig& config, std::span<const SweepTable> tables) {
  const bool built_in_words = config.lexicon_file.empty() && config.tokenizer_dir.empty();
  const bool missed = std::ranges::any_of(tables, [](const SweepTable& table) {
    return table.found() + table.failed() < table.total();
  });
  if (!built_in_words || !missed) return "";
  return "the questions had built-in words, and a small model finds only what it knows: give "
         "--tokenizer DIR, its folder, or --model-lexicon FILE\n";
}

// The others are in the JSON.
std::string FirstError(const SweepTable& table) {
  for (const SweepCell& cell : table.cells()) {
    if (cell.outcome == NeedleOutcome::kFailed) return "failed: " + cell.reply + "\n";
  }
  return "";
}

}  // namespace

std::string DescribeSweep(const SweepTable& table) {
  std::string text = table.label().empty() ? "" : table.label() + "\n";
  text += table.ToText();
  return text + (table.kind() == SweepKind::kResidues ? ResidueFindings(table) : FirstError(table));
}

absl::StatusOr<std::vector<SweepTable>> ReadPanels(std::span<const std::string> files) {
  std::vector<SweepTable> tables;
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) return absl::InvalidArgumentError("cannot read --panel " + file);
    for (std::string line; std::getline(stream, line);) {
      ASSIGN_OR_RETURN(SweepTable table, SweepTable::FromJson(line, file));
      tables.push_back(std::move(table));
    }
  }
  return tables;
}

absl::Status WriteSweeps(const SweepConfig& config, std::span<const SweepTable> tables) {
  if (config.json == "-") {
    std::printf("%s", JsonLines(tables).c_str());
  } else {
    for (const SweepTable& table : tables) std::printf("%s", DescribeSweep(table).c_str());
    if (!config.json.empty()) {
      RETURN_IF_ERROR(WriteFile("--json", config.json, JsonLines(tables)));
    }
  }
  if (!config.svg.empty()) {
    ASSIGN_OR_RETURN(std::vector<SweepTable> panels, ReadPanels(config.panels));
    panels.insert(panels.end(), tables.begin(), tables.end());
    const bool residues = !tables.empty() && tables.front().kind() == SweepKind::kResidues;
    RETURN_IF_ERROR(
        WriteFile("--svg", config.svg,
                  DrawHeatMap(residues ? "Needles found, by residue of the prompt length"
                                       : "Needles found, by prompt length and depth of the needle",
                              panels)));
  }
  std::fprintf(stderr, "%s", WordsHint(config, tables).c_str());
  // With --json - stdout is for the JSON alone.
  std::fprintf(config.json == "-" ? stderr : stdout, "%s found\n", SummaryOf(tables).c_str());
  return absl::OkStatus();
}

}  // namespace lodestone

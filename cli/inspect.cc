#include "cli/inspect.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "cli/command.h"
#include "model/checkpoint.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone inspect";
constexpr std::string_view kDescription =
    "Checks a checkpoint as a worker would and shows what is in it.\n"
    "  lodestone inspect models/needle-tiny --no-tensors";

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

void AddFact(const std::string& name, const std::string& value, std::string* text) {
  char line[512];
  std::snprintf(line, sizeof(line), "%-22s %s\n", name.c_str(), value.c_str());
  *text += line;
}

void AddFacts(const ModelConfig& model, std::string* text) {
  int counts[3] = {};
  for (const int64_t ratio : model.compress_ratios) ++counts[ratio == 0 ? 0 : ratio == 4 ? 1 : 2];
  const auto number = [](int64_t value) { return std::to_string(value); };
  AddFact("layers",
          number(model.num_layers) + ": " + number(counts[0]) + " window, " + number(counts[1]) +
              " indexed, " + number(counts[2]) + " dense",
          text);
  AddFact("hidden size", number(model.hidden_size), text);
  AddFact("heads",
          number(model.num_heads) + " of " + number(model.head_dim) + " dims, " +
              number(model.rope_dims) + " rotary",
          text);
  AddFact("window", number(model.window) + " tokens", text);
  AddFact("indexer",
          number(model.index_heads) + " heads of " + number(model.index_head_dim) + " dims, top " +
              number(model.index_top_k),
          text);
  AddFact("experts",
          number(model.num_experts) + ", " + number(model.experts_per_token) +
              " per token, width " + number(model.expert_width),
          text);
  AddFact("residual streams", number(model.num_streams), text);
  AddFact("vocabulary", number(model.vocab_size), text);
  AddFact("context", number(model.max_context_tokens) + " tokens", text);
  AddFact("matrices",
          std::string(Name(model.dense_format)) + ", of routed experts " +
              std::string(Name(model.expert_format)),
          text);
  AddFact("numerics auto", std::string(Name(AutoNumerics(model))), text);
}

void AddTotals(const std::vector<Checkpoint::Entry>& entries, std::string* text) {
  struct Total {
    int64_t tensors = 0;
    int64_t parameters = 0;
    int64_t bytes = 0;
  };
  std::map<std::string, Total> by_dtype, by_file;
  Total all;
  for (const Checkpoint::Entry& entry : entries) {
    for (Total* total :
         {&by_dtype[std::string(Name(entry.tensor.dtype))], &by_file[FileName(entry.file)], &all}) {
      ++total->tensors;
      total->parameters += entry.tensor.num_elements();
      total->bytes += entry.tensor.num_bytes();
    }
  }
  const auto show = [](const Total& total) {
    return std::to_string(total.tensors) + " tensors, " + std::to_string(total.parameters) +
           " numbers, " + FormatBytes(static_cast<uint64_t>(total.bytes));
  };
  for (const auto& [name, total] : by_dtype) AddFact(name, show(total), text);
  for (const auto& [name, total] : by_file) AddFact(name, show(total), text);
  AddFact("total", show(all), text);
}

int Inspect(const InspectConfig& config) {
  const absl::StatusOr<std::string> text = DescribeCheckpoint(config);
  if (!text.ok()) return PrintFailure(kName, text.status());
  std::printf("%s", text->c_str());
  return 0;
}

}  // namespace

absl::StatusOr<std::string> DescribeCheckpoint(const InspectConfig& config) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   Checkpoint::Open(config.directory, {.overlay = config.overlay,
                                                       .verify_weights = config.verify_weights}));
  const std::vector<Checkpoint::Entry> entries = checkpoint.Entries();
  std::string text;
  AddFacts(checkpoint.config(), &text);
  if (config.tensors) {
    text += "\n";
    for (const Checkpoint::Entry& entry : entries) {
      char line[512];
      std::snprintf(line, sizeof(line), "%-52s %-20s %s\n", entry.name.c_str(),
                    entry.tensor.ShapeString().c_str(), FileName(entry.file).c_str());
      text += line;
    }
  }
  text += "\n";
  AddTotals(entries, &text);
  AddFact("model id", checkpoint.model_id(), &text);
  return text;
}

int RunInspect(int argc, const char* const* argv) {
  return RunCommand<InspectConfig>(kName, kDescription, argc, argv, Inspect);
}

}  // namespace lodestone

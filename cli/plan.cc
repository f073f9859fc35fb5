#include "cli/plan.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "cli/command.h"
#include "engine/engine.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone plan";
constexpr std::string_view kDescription =
    "Shows how a worker divides its memory, for every index-key format side by side. It is the "
    "code\n"
    "that sizes a running worker; only config.json is read.\n"
    "  lodestone plan --model models/needle-tiny --memory 256MiB --ctx 10500";

struct Column {
  IndexKeyFormat format;
  absl::StatusOr<MemoryPlan> plan;
};

std::vector<IndexKeyFormat> FormatsUnder(Numerics numerics) {
  if (numerics == Numerics::kExact) return {IndexKeyFormat::kF32};
  return {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4};
}

EngineOptions OptionsOf(const PlanConfig& config) {
  EngineOptions options;
  options.model_dir = config.model;
  options.num_threads = static_cast<int>(config.threads);
  options.memory_limit_bytes = config.memory.bytes;
  options.max_sequences = config.max_sequences;
  options.max_context_tokens = config.max_context;
  options.max_batch_tokens = config.chunk_tokens;
  options.staging_bytes = config.staging_slot.bytes * config.staging_slots;
  return options;
}

absl::StatusOr<std::vector<Column>> MakeColumns(const PlanConfig& config, const ModelConfig& model,
                                                FormatChoice* chosen) {
  ASSIGN_OR_RETURN(*chosen, ChooseFormats(model, ParseNumerics(config.numerics),
                                          ParseKvFormat(config.kv), std::nullopt));
  const std::unique_ptr<Ops> ops = MakeCpuOps(NumComputeThreads(OptionsOf(config)));
  std::vector<Column> columns;
  for (const IndexKeyFormat format : FormatsUnder(chosen->numerics)) {
    FormatChoice formats = *chosen;
    formats.index_key = format;
    columns.push_back({format, PlanEngine(OptionsOf(config), model, formats, *ops)});
    const absl::Status& status = columns.back().plan.status();
    if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
  }
  return columns;
}

// One row of the table: a name, then a cell for each format.
template <typename Cell>
void AddRow(const std::string& name, const std::vector<Column>& columns, Cell cell,
            std::string* table) {
  char text[64];
  std::snprintf(text, sizeof(text), "%-30s", name.c_str());
  *table += text;
  for (const Column& column : columns) {
    const std::string value = column.plan.ok() ? cell(*column.plan) : "-";
    std::snprintf(text, sizeof(text), "%16s", value.c_str());
    *table += text;
  }
  *table += "\n";
}

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

void AddPools(const std::vector<Column>& columns, std::string* table) {
  for (int i = 0; i < kNumMemoryPools; ++i) {
    const auto pool = static_cast<MemoryPool>(i);
    const bool used = std::ranges::any_of(columns, [&](const Column& column) {
      return column.plan.ok() && column.plan->capacity[pool] > 0;
    });
    if (!used) continue;
    AddRow(
        std::string(Name(pool)), columns,
        [&](const MemoryPlan& plan) { return Bytes(plan.capacity[pool]); }, table);
  }
  AddRow(
      "total", columns, [](const MemoryPlan& plan) { return Bytes(plan.capacity.total()); }, table);
}

void AddLimits(const PlanConfig& config, const std::vector<Column>& columns, std::string* table) {
  AddRow(
      "fixed bytes per request", columns,
      [](const MemoryPlan& plan) { return std::to_string(plan.bytes_per_request_fixed); }, table);
  AddRow(
      "bytes per token", columns,
      [](const MemoryPlan& plan) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.1f", plan.bytes_per_token);
        return std::string(text);
      },
      table);
  AddRow(
      "largest context, tokens", columns,
      [](const MemoryPlan& plan) { return std::to_string(plan.largest_context); }, table);
  std::vector<int64_t> contexts = {1'024, 10'500, 65'536};
  if (config.context > 0) contexts = {config.context};
  for (const int64_t context : contexts) {
    AddRow(
        "requests of " + std::to_string(context) + " tokens", columns,
        [&](const MemoryPlan& plan) { return std::to_string(plan.Concurrency(context)); }, table);
  }
}

int Plan(const PlanConfig& config) {
  const absl::StatusOr<std::string> table = PlanTable(config);
  if (!table.ok()) return PrintFailure(kName, table.status());
  std::printf("%s", table->c_str());
  return 0;
}

}  // namespace

absl::StatusOr<std::string> PlanTable(const PlanConfig& config) {
  if (config.threads < 0 || config.threads > kMaxComputeThreads) {
    return absl::InvalidArgumentError("--threads is " + std::to_string(config.threads) + ", 0 to " +
                                      std::to_string(kMaxComputeThreads) + " are possible");
  }
  ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config.model));
  FormatChoice chosen;
  ASSIGN_OR_RETURN(const std::vector<Column> columns, MakeColumns(config, model, &chosen));
  std::string table = "memory " + Bytes(config.memory.bytes) + " per worker, numerics " +
                      std::string(Name(chosen.numerics)) + ", latents " +
                      std::string(Name(chosen.kv)) + ", at most " +
                      std::to_string(config.max_sequences) + " requests\n\n";
  char text[64];
  std::snprintf(text, sizeof(text), "%-30s", "index keys as");
  table += text;
  for (const Column& column : columns) {
    std::snprintf(text, sizeof(text), "%16s", std::string(Name(column.format)).c_str());
    table += text;
  }
  table += "\n";
  AddPools(columns, &table);
  table += "\n";
  AddLimits(config, columns, &table);
  for (const Column& column : columns) {
    if (column.plan.ok()) continue;
    table += std::string(Name(column.format)) + ": " + std::string(column.plan.status().message()) +
             "\n";
  }
  return table;
}

int RunPlan(int argc, const char* const* argv) {
  return RunCommand<PlanConfig>(kName, kDescription, argc, argv, Plan);
}

}  // namespace lodestone

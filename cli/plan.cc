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
#include "prefill/config.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone plan";
constexpr std::string_view kDescription =
    "Shows how a worker divides its memory, for every index-key format side by side. It is the "
    "code\n"
    "that sizes a running worker; only config.json is read.\n"
    "  lodestone plan --model models/needle-tiny --memory 256MiB --ctx 10500\n"
    "Exit code 1 if no format fits.";

struct Column {
  IndexKeyFormat format;
  absl::StatusOr<MemoryPlan> plan;
};

std::vector<IndexKeyFormat> FormatsUnder(Numerics numerics) {
  if (numerics == Numerics::kExact) return {IndexKeyFormat::kF32};
  return {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4};
}

struct Plans {
  FormatChoice chosen;
  std::vector<Column> columns;
};

// As a prefill worker on the CPU reads it.
absl::StatusOr<int64_t> ChunkTokensOf(const PlanConfig& config) {
  PrefillConfig prefill;
  prefill.worker.max_context = config.max_context;
  prefill.chunk_tokens = config.chunk_tokens;
  return ChunkTokens(prefill);
}

absl::StatusOr<EngineOptions> OptionsOf(const PlanConfig& config) {
  if (config.threads < 0 || config.threads > kMaxComputeThreads) {
    return absl::InvalidArgumentError("--threads is " + std::to_string(config.threads) + ", 0 to " +
                                      std::to_string(kMaxComputeThreads) + " are possible");
  }
  EngineOptions options;
  options.model_dir = config.model;
  options.num_threads = static_cast<int>(config.threads);
  options.memory_limit_bytes = config.memory.bytes;
  options.max_sequences = config.max_sequences;
  options.max_context_tokens = config.max_context;
  ASSIGN_OR_RETURN(options.max_batch_tokens, ChunkTokensOf(config));
  options.staging_bytes = config.staging_slot.bytes * config.staging_slots;
  return options;
}

absl::StatusOr<Plans> MakePlans(const PlanConfig& config) {
  ASSIGN_OR_RETURN(const EngineOptions options, OptionsOf(config));
  ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config.model));
  Plans plans;
  ASSIGN_OR_RETURN(plans.chosen, ChooseFormats(model, ParseNumerics(config.numerics),
                                               ParseKvFormat(config.kv), std::nullopt));
  const std::unique_ptr<Ops> ops = MakeCpuOps(NumComputeThreads(options));
  for (const IndexKeyFormat format : FormatsUnder(plans.chosen.numerics)) {
    FormatChoice formats = plans.chosen;
    formats.index_key = format;
    plans.columns.push_back({format, PlanEngine(options, model, formats, *ops)});
    const absl::Status& status = plans.columns.back().plan.status();
    if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
  }
  return plans;
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

std::string Table(const PlanConfig& config, const Plans& plans) {
  std::string table = "memory " + Bytes(config.memory.bytes) + " per worker, numerics " +
                      std::string(Name(plans.chosen.numerics)) + ", latents " +
                      std::string(Name(plans.chosen.kv)) + ", at most " +
                      std::to_string(config.max_sequences) + " requests\n\n";
  char text[64];
  std::snprintf(text, sizeof(text), "%-30s", "index keys as");
  table += text;
  for (const Column& column : plans.columns) {
    std::snprintf(text, sizeof(text), "%16s", std::string(Name(column.format)).c_str());
    table += text;
  }
  table += "\n";
  AddPools(plans.columns, &table);
  table += "\n";
  AddLimits(config, plans.columns, &table);
  for (const Column& column : plans.columns) {
    if (column.plan.ok()) continue;
    table += std::string(Name(column.format)) + ": " + std::string(column.plan.status().message()) +
             "\n";
  }
  return table;
}

int Plan(const PlanConfig& config) {
  const absl::StatusOr<Plans> plans = MakePlans(config);
  if (absl::IsInvalidArgument(plans.status())) return PrintUsageError(kName, plans.status());
  if (!plans.ok()) return PrintFailure(kName, plans.status());
  std::printf("%s", Table(config, *plans).c_str());
  const bool fits =
      std::ranges::any_of(plans->columns, [](const Column& column) { return column.plan.ok(); });
  return fits ? 0 : 1;
}

}  // namespace

absl::StatusOr<std::string> PlanTable(const PlanConfig& config) {
  ASSIGN_OR_RETURN(const Plans plans, MakePlans(config));
  return Table(config, plans);
}

int RunPlan(int argc, const char* const* argv) {
  return RunCommand<PlanConfig>(kName, kDescription, argc, argv, Plan);
}

}  // namespace lodestone

#pragma once

#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "cli/sweep_config.h"
#include "recall/sweep_table.h"

namespace lodestone {

// The tables on stdout with what went wrong, and the files that the config names. The last line is
// "N of M found", over all tables. UNAVAILABLE if a file cannot be written, INVALID_ARGUMENT if a
// --panel cannot be read.
absl::Status WriteSweeps(const SweepConfig& config, std::span<const SweepTable> tables);

// A sweep as it is printed: its label, the table, and which questions went wrong and how: the first
// error, and for residues each length that was not answered word for word or had another length.
std::string DescribeSweep(const SweepTable& table);

// The tables in the --json files of earlier sweeps. INVALID_ARGUMENT as WriteSweeps says.
absl::StatusOr<std::vector<SweepTable>> ReadPanels(std::span<const std::string> files);

}  // namespace lodestone

#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/config.h"

namespace lodestone {

// Parses the flags of a subcommand, then runs `body(config)`, which returns the exit code: 0 good,
// 1 the command found what it looks for or failed, 2 bad usage. LODESTONE_CONFIG is for the
// subcommand alone: the workers of `up` and `verify` do not read it.
template <typename Config, typename Body>
int RunCommand(std::string_view name, std::string_view description, int argc,
               const char* const* argv, Body body) {
  Config config;
  absl::StatusOr<ParseOutcome> outcome = ParseConfig(name, description, argc, argv, config);
  if (!outcome.ok()) return PrintUsageError(name, outcome.status());
  if (outcome->exit) return PrintAndExit(*outcome);
  HideConfigFile();
  for (const std::string& warning : outcome->warnings) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  return body(config);
}

// "lodestone sweep: message" on stderr; returns 1.
inline int PrintFailure(std::string_view name, const absl::Status& status) {
  std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(name.size()), name.data(),
               std::string(status.message()).c_str());
  return 1;
}

}  // namespace lodestone

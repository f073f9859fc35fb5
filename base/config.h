// Settings of a program: one struct with defaults and one VisitFields, from which come the flags
// (--max-batch-tokens), the environment (LODESTONE_MAX_BATCH_TOKENS), the keys of the TOML file
// named by --config, --help, --version and --print-config. Flag beats environment beats file beats
// default. An unknown flag or key, or a value that cannot be parsed, ends the start.
//
//   struct RouterConfig {
//     int64_t http_port = 8000;
//     std::chrono::milliseconds queue_timeout{30000};
//     std::string index_k = "bf16";
//     template <typename Visitor>
//     void VisitFields(Visitor& visit) {
//       visit(http_port, "http-port", "port of the HTTP API; 0 = any free", "Network");
//       visit(queue_timeout, "queue-timeout", "longest wait for a worker", "Limits");
//       visit(index_k, "index-k", "storage of index keys", "Cache",
//             {.allowed = {"bf16", "fp8", "fp4"}});
//       logging.VisitFields(visit);  // structs nest
//     }
//     LoggingConfig logging;
//   };
//
//   int main(int argc, char** argv) {
//     RouterConfig config;
//     absl::StatusOr<ParseOutcome> outcome = ParseConfig("lodestone-router", "...", argc, argv,
//     config); if (!outcome.ok()) return PrintUsageError("lodestone-router", outcome.status());  //
//     2 if (outcome->exit) return PrintAndExit(*outcome);                                 // 0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "base/logging.h"

namespace lodestone {

// Written "64MiB", "1.5GiB", "4096" (base/bytes.h).
struct ByteSize {
  int64_t bytes = 0;
  friend auto operator<=>(const ByteSize&, const ByteSize&) = default;
};

// Where a field lives. Text forms: bool --x, --no-x, --x=true; int64 and double as numbers; strings
// as they are; lists by repeating the flag, with commas in the environment, as an array in the
// file; durations as "500ms", "5s", "2m", "1h".
using FieldRef = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                              ByteSize*, std::chrono::milliseconds*>;

struct FieldTraits {
  std::vector<std::string> allowed = {};  // of a string or a list: the only values; empty = any
  bool required = false;                  // a default is not enough
  bool positional = false;  // an argument without a flag; string or list; not in env or file
  bool secret = false;      // never printed
};

struct ConfigField {
  FieldRef ref;
  std::string name;  // kebab-case
  std::string help;  // with the unit where there is one
  std::string group;
  FieldTraits traits;
};

struct ConfigValue {
  std::string name;
  std::string value;   // as it would be written; "<hidden>" for a secret that is set
  std::string origin;  // "flag", "env", "file" or "default"
};

struct ParseOutcome {
  bool exit = false;  // --help, --version, --print-config: print `text` on stdout and exit 0
  std::string text = {};
  std::vector<ConfigValue> values = {};    // every setting that is not positional, in order
  std::vector<std::string> warnings = {};  // LODESTONE_ variables that look like a misspelt setting
};

// The visitor that VisitFields is called with.
class FieldCollector {
 public:
  template <typename T>
  void operator()(T& member, std::string_view name, std::string_view help, std::string_view group,
                  FieldTraits traits = {}) {
    fields_.push_back(ConfigField{FieldRef(&member), std::string(name), std::string(help),
                                  std::string(group), std::move(traits)});
  }
  std::vector<ConfigField>& fields() { return fields_; }

 private:
  std::vector<ConfigField> fields_;
};

// INVALID_ARGUMENT with a message for the user; the fields are then in an unspecified state.
// argv[0] is skipped, so a tool with subcommands passes argv from the subcommand on. `program` is
// what --help shows: "lodestone-router", "lodestone sweep".
absl::StatusOr<ParseOutcome> ParseFields(std::string_view program, std::string_view description,
                                         int argc, const char* const* argv,
                                         std::vector<ConfigField> fields);

template <typename Config>
absl::StatusOr<ParseOutcome> ParseConfig(std::string_view program, std::string_view description,
                                         int argc, const char* const* argv, Config& config) {
  FieldCollector collector;
  config.VisitFields(collector);
  return ParseFields(program, description, argc, argv, std::move(collector.fields()));
}

// "name: message" and a pointer to --help on stderr; returns 2, the exit code of a usage error.
int PrintUsageError(std::string_view program, const absl::Status& status);
// outcome.text on stdout; returns 0.
int PrintAndExit(const ParseOutcome& outcome);

// Parsers of single values, INVALID_ARGUMENT with the text and what was expected.
absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);
std::string FormatDuration(std::chrono::milliseconds duration);

// The environment is read nowhere else. nullopt if unset or empty.
std::optional<std::string> GetEnvironment(const std::string& name);

// Takes LODESTONE_CONFIG out of the environment. For a program that has read its settings and
// starts others: they inherit the rest, but the keys of that file are not theirs. One thread only.
void HideConfigFile();

// The settings of logging that all programs share.
struct LoggingConfig {
  std::string format = "auto";
  int64_t verbosity = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(format, "log-format", "auto is text on a terminal, JSON lines otherwise", "Logging",
          FieldTraits{.allowed = {"auto", "json", "text"}});
    visit(verbosity, "verbosity",
          "0 logs changes of state and, on a router, each request; 1 logs more", "Logging");
  }
  LogOptions ToOptions(std::string component) const {
    return LogOptions{ParseLogFormat(format), std::move(component), static_cast<int>(verbosity)};
  }
};

}  // namespace lodestone

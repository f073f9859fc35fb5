#include "base/config.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <CLI/CLI.hpp>

#include "base/build_info.h"
#include "base/config_file.h"
#include "base/config_value.h"
#include "base/status_macros.h"

extern char** environ;

namespace lodestone {
namespace {

constexpr char kEnvPrefix[] = "LODESTONE_";

std::string EnvName(std::string_view field_name) {
  std::string name = kEnvPrefix;
  for (char c : field_name) {
    name.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return name;
}

std::string Suggestion(const std::string& nearest) {
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)");
}

absl::Status At(const std::string& place, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", status.message()));
}

// CLI11's formatter writes "--no-x{false}" for the negation of a switch. Nobody types that.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return absl::StrReplaceAll(CLI::Formatter::make_option_name(option, positional),
                               {{"{false}", ""}});
  }
};

// The command line, read by CLI11 as texts; meaning is given to them later.
struct CommandLine {
  CLI::App app;
  std::map<std::string, CLI::Option*> options;  // by field name
  std::string config_path;
  bool help = false;
  bool version = false;
  bool print_config = false;
};

std::string HelpText(const ConfigField& field) {
  if (field.traits.positional) return field.help;
  const std::string fallback =
      field.traits.required ? "required" : absl::StrCat("default ", FormatField(field));
  return absl::StrCat(field.help, "\n[", fallback, "; env ", EnvName(field.name), "]");
}

void AddOption(const ConfigField& field, CommandLine* line) {
  CLI::Option* option = nullptr;
  if (IsBool(field)) {
    option = line->app.add_flag(absl::StrCat("--", field.name, ",!--no-", field.name));
  } else {
    const std::string flag = field.traits.positional ? field.name : absl::StrCat("--", field.name);
    option = line->app.add_option_function<std::vector<std::string>>(
        flag, [](const std::vector<std::string>&) {});
    option->allow_extra_args(field.traits.positional && IsList(field));
    if (!IsList(field)) option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->type_name(ValuePlaceholder(field));
  }
  option->description(HelpText(field));
  option->group(field.traits.positional ? "Arguments" : field.group);
  line->options[field.name] = option;
}

void SetUpApp(std::string_view program, std::string_view description,
              const std::vector<ConfigField>& fields, CommandLine* line) {
  CLI::App& app = line->app;
  app.name(std::string(program));
  app.description(std::string(description));
  app.set_help_flag();
  app.allow_extras();
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(36);
  for (const ConfigField& field : fields) AddOption(field, line);
  app.add_option(
         "--config", line->config_path,
         absl::StrCat("file with lines `flag-name = value` (TOML)\n[env ", EnvName("config"), "]"))
      ->type_name("FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group("General");
  app.add_flag("--print-config", line->print_config,
               "print every setting and where it comes from, then exit")
      ->group("General");
  app.add_flag("--version", line->version, "print the version, then exit")->group("General");
  app.add_flag("-h,--help", line->help, "print this help, then exit")->group("General");
}

absl::Status ParseCommandLine(int argc, const char* const* argv, CommandLine* line) {
  try {
    line->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const std::out_of_range&) {  // CLI11 2.3 lets it out for --switch=99999999999999999999
    return absl::InvalidArgumentError(
        "the value of a switch is out of range, expected true or false");
  }
  const std::vector<std::string> unknown = line->app.remaining();
  if (unknown.empty() || line->help) return absl::OkStatus();
  for (const std::string& text : unknown) {
    if (!text.starts_with("-")) continue;
    std::vector<std::string> names = {"--config", "--print-config", "--version", "--help"};
    for (const auto& [name, option] : line->options) {
      if (!option->get_positional()) names.push_back("--" + name);
    }
    const std::string flag = text.substr(0, text.find('='));
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag ", flag, Suggestion(NearestName(flag, names))));
  }
  return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", unknown.front(), "'"));
}

// Applies the sources one after the other, each over the one before, and notes the origin.
class Merger {
 public:
  explicit Merger(const std::vector<ConfigField>& fields) : fields_(fields) {}

  absl::Status ApplyFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) {
      // An empty file sets failbit on `text`; only an unreadable one is an error.
      if (!file.is_open() || file.bad()) return At(path, absl::NotFoundError("cannot be read"));
    }
    const absl::StatusOr<std::vector<ConfigFileEntry>> entries =
        ParseConfigFile(std::move(text).str());
    if (!entries.ok()) return At(path, entries.status());
    for (const ConfigFileEntry& entry : *entries) {
      const std::string place = absl::StrCat(path, ": line ", entry.line, ": ", entry.key);
      const ConfigField* const field = Find(entry.key);
      if (field == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": line ", entry.line, ": unknown key ", entry.key,
                         Suggestion(NearestName(entry.key, Names()))));
      }
      RETURN_IF_ERROR(Apply(*field, entry.values, place, "file"));
    }
    return absl::OkStatus();
  }

  absl::Status ApplyEnvironment() {
    for (const ConfigField& field : fields_) {
      if (field.traits.positional) continue;
      const std::string name = EnvName(field.name);
      const std::optional<std::string> value = GetEnvironment(name);
      if (!value.has_value()) continue;
      std::vector<std::string> texts = {*value};
      if (IsList(field)) texts = absl::StrSplit(*value, ',');
      RETURN_IF_ERROR(Apply(field, texts, name, "env"));
    }
    return absl::OkStatus();
  }

  absl::Status ApplyCommandLine(const CommandLine& line) {
    for (const ConfigField& field : fields_) {
      const CLI::Option& option = *line.options.at(field.name);
      if (option.empty()) continue;
      std::vector<std::string> texts = option.results();
      if (!IsList(field)) texts = {texts.back()};
      const std::string place = field.traits.positional ? field.name : "--" + field.name;
      RETURN_IF_ERROR(Apply(field, texts, place, "flag"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRequired() const {
    for (const ConfigField& field : fields_) {
      if (!field.traits.required || origins_.contains(field.name)) continue;
      if (field.traits.positional) {
        return absl::InvalidArgumentError(absl::StrCat(field.name, " is missing: ", field.help));
      }
      return absl::InvalidArgumentError(absl::StrCat("--", field.name, " (or ", EnvName(field.name),
                                                     ") is required: ", field.help));
    }
    return absl::OkStatus();
  }

  std::vector<ConfigValue> Values() const {
    std::vector<ConfigValue> values;
    for (const ConfigField& field : fields_) {
      if (field.traits.positional) continue;
      const auto origin = origins_.find(field.name);
      values.push_back(
          {field.name, FormatField(field), origin == origins_.end() ? "default" : origin->second});
    }
    return values;
  }

 private:
  absl::Status Apply(const ConfigField& field, const std::vector<std::string>& texts,
                     const std::string& place, const std::string& origin) {
    const absl::Status status = SetField(field, texts);
    if (!status.ok()) return At(place, status);
    origins_[field.name] = origin;
    return absl::OkStatus();
  }

  const ConfigField* Find(const std::string& name) const {
    for (const ConfigField& field : fields_) {
      if (field.name == name && !field.traits.positional) return &field;
    }
    return nullptr;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const ConfigField& field : fields_) {
      if (!field.traits.positional) names.push_back(field.name);
    }
    return names;
  }

  const std::vector<ConfigField>& fields_;
  std::map<std::string, std::string> origins_;
};

// A variable with our prefix that is not ours may belong to another program of the cluster, so only
// one that is nearly ours is worth a word.
std::vector<std::string> MisspeltVariables(const std::vector<ConfigField>& fields) {
  std::set<std::string> known = {EnvName("config"), EnvName("failpoints")};
  for (const ConfigField& field : fields) known.insert(EnvName(field.name));
  std::vector<std::string> warnings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (!name.starts_with(kEnvPrefix) || known.contains(name)) continue;
    // Without the prefix, so that it does not make every name look alike.
    std::vector<std::string> candidates;
    for (const std::string& other : known)
      candidates.push_back(other.substr(sizeof(kEnvPrefix) - 1));
    const std::string nearest = NearestName(name.substr(sizeof(kEnvPrefix) - 1), candidates);
    if (nearest.empty()) continue;
    warnings.push_back(absl::StrCat("environment variable ", name, " is not used",
                                    Suggestion(kEnvPrefix + nearest)));
  }
  return warnings;
}

std::string PrintValues(const std::vector<ConfigValue>& values) {
  std::string text;
  for (const ConfigValue& value : values) {
    absl::StrAppend(&text, value.name, " = ", value.value, "  # ", value.origin, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<ParseOutcome> ParseFields(std::string_view program, std::string_view description,
                                         int argc, const char* const* argv,
                                         std::vector<ConfigField> fields) {
  CommandLine line;
  SetUpApp(program, description, fields, &line);
  RETURN_IF_ERROR(ParseCommandLine(argc, argv, &line));
  if (line.help) return ParseOutcome{.exit = true, .text = line.app.help()};
  if (line.version) {
    std::ostringstream version;
    version << program << " " << BuildVersion() << " (" << BuildType() << ", " << BuildCompiler()
            << ")\n";
    return ParseOutcome{.exit = true, .text = std::move(version).str()};
  }

  Merger merger(fields);
  const std::string config_path =
      line.config_path.empty() ? GetEnvironment(EnvName("config")).value_or("") : line.config_path;
  if (!config_path.empty()) RETURN_IF_ERROR(merger.ApplyFile(config_path));
  RETURN_IF_ERROR(merger.ApplyEnvironment());
  RETURN_IF_ERROR(merger.ApplyCommandLine(line));

  ParseOutcome outcome;
  outcome.values = merger.Values();
  outcome.warnings = MisspeltVariables(fields);
  if (line.print_config) {
    outcome.exit = true;
    outcome.text = PrintValues(outcome.values);
    return outcome;
  }
  RETURN_IF_ERROR(merger.CheckRequired());
  return outcome;
}

int PrintUsageError(std::string_view program, const absl::Status& status) {
  const std::string name(program);
  std::fprintf(stderr, "%s: %s\nRun '%s --help' for the flags.\n", name.c_str(),
               std::string(status.message()).c_str(), name.c_str());
  return 2;
}

int PrintAndExit(const ParseOutcome& outcome) {
  std::fputs(outcome.text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

void HideConfigFile() { unsetenv(EnvName("config").c_str()); }

std::optional<std::string> GetEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace lodestone

// The configuration file: the flat part of TOML, `key = value` lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

struct ConfigFileEntry {
  std::string key;
  std::vector<std::string> values;  // the elements of an array, else one
  int line = 0;                     // from 1
};

// Values are "basic" or 'literal' strings, bare words (numbers, true, 64MiB), and arrays of these,
// which may span lines; # starts a comment. Tables, dotted keys, a key given twice and anything
// else are INVALID_ARGUMENT with the line.
absl::StatusOr<std::vector<ConfigFileEntry>> ParseConfigFile(std::string_view text);

}  // namespace lodestone

#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "boost/json/value.hpp"

namespace lodestone {

// JSON from files that may be hostile or damaged. INVALID_ARGUMENT, with the place, for text that
// is not JSON, is nested deeper than 16, or names a key twice in one object (parsers disagree on
// which one counts, so neither does).
absl::StatusOr<boost::json::value> ParseStrictJson(std::string_view text);

// The bytes of a text file; NOT_FOUND, or INVALID_ARGUMENT beyond 256 MiB, naming the file.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace lodestone

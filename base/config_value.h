// Text of single settings to and from their fields; part of base/config.
#pragma once

#include <string>
#include <vector>

#include <absl/status/status.h>

#include "base/config.h"

namespace lodestone {

// Parses `texts` (one text unless the field is a list) into the field. INVALID_ARGUMENT says what
// was expected; the caller adds where the text came from.
absl::Status SetField(const ConfigField& field, const std::vector<std::string>& texts);

// The current value as it would be written in the configuration file.
std::string FormatField(const ConfigField& field);

bool IsList(const ConfigField& field);
bool IsBool(const ConfigField& field);

// What a value of the field looks like, for --help: "N", "SIZE", "bf16|fp8|fp4".
std::string ValuePlaceholder(const ConfigField& field);

// The candidate most like `name`; "" if none is close enough to be meant.
std::string NearestName(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace lodestone

#pragma once

#include "base/config.h"

namespace lodestone {

// Whether tests take their long form: the numbers of the requirements, minutes instead of seconds.
inline bool LongTests() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1"; }

}  // namespace lodestone

#pragma once

#include <string>

#include "model/weights.h"

namespace lodestone {

// Shows the loading of `what` on stderr: one line that is redrawn on a terminal, else a log line at
// most every 2 s and one at the end.
LoadProgress ShowLoadProgress(std::string what);

}  // namespace lodestone

#pragma once

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace lodestone {

// The limit of a test's wait: as given on a machine that has time for the test, longer on one that has
// more to do than twice its processors can (by its load average of the last minute).
inline std::chrono::milliseconds Allowed(std::chrono::milliseconds limit) {
  double load = 0;
  getloadavg(&load, 1);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double factor = std::max(1.0, load / (2 * cores));
  return std::chrono::milliseconds(static_cast<int64_t>(static_cast<double>(limit.count()) * factor));
}

}  // namespace lodestone

#pragma once

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace lodestone {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How much longer everything takes in a build with sanitizers, whose makers measure 2 to 15 times;
// its clusters also work in shorter steps and for fewer clients (running_cluster.cc, the tests).
inline constexpr int kSanitizedFactor = kSanitized ? 5 : 1;

// The limit of a test's wait: as given on a machine that has time for the test, longer with
// sanitizers, and on a machine that has more to do than twice its processors can (by its load
// average of the last minute).
inline std::chrono::milliseconds Allowed(std::chrono::milliseconds limit) {
  double load = 0;
  getloadavg(&load, 1);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double factor = std::max(1.0, load / (2 * cores)) * kSanitizedFactor;
  return std::chrono::milliseconds(
      static_cast<int64_t>(static_cast<double>(limit.count()) * factor));
}

}  // namespace lodestone

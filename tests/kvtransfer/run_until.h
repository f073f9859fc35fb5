#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace lodestone {

// Calls `pump` until `done` or for at most `limit` of real time.
template <typename Done, typename Pump>
bool RunUntil(Done done, Pump pump, std::chrono::seconds limit = std::chrono::seconds(20)) {
  const auto until = RealClock()->Now() + limit;
  while (!done()) {
    if (RealClock()->Now() > until) return false;
    pump();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace lodestone

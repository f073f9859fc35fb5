#include "base/clock.h"

namespace lodestone {
namespace {

class SystemClocks final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  WallTime WallNow() const override { return std::chrono::system_clock::now(); }
};

}  // namespace

Clock* RealClock() {
  // Never destroyed: a thread that still runs at the end of the process may ask for the time.
  static SystemClocks* const clocks = new SystemClocks;
  return clocks;
}

TimePoint FakeClock::Now() const { return TimePoint(elapsed_.load()); }

WallTime FakeClock::WallNow() const {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(elapsed_.load()));
}

void FakeClock::Advance(std::chrono::nanoseconds step) {
  std::chrono::nanoseconds before = elapsed_.load();
  while (!elapsed_.compare_exchange_weak(before, before + step)) {
  }
}

}  // namespace lodestone

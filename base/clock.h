// Time as an argument: classes that measure or expire take a Clock*, tests give them a FakeClock.
#pragma once

#include <atomic>
#include <chrono>

namespace lodestone {

using TimePoint = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: for deadlines, ages and durations.
  virtual TimePoint Now() const = 0;
  // Calendar time: only for what people read and for what leaves the process.
  virtual WallTime WallNow() const = 0;
};

// The machine's clocks. Never null; lives as long as the process.
Clock* RealClock();

// Stands still until Advance(). Both times start at `start_offset` after their epochs.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(std::chrono::nanoseconds start_offset = std::chrono::hours(1))
      : elapsed_(start_offset) {}
  TimePoint Now() const override;
  WallTime WallNow() const override;
  void Advance(std::chrono::nanoseconds step);

 private:
  std::atomic<std::chrono::nanoseconds> elapsed_;
};

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <iterator>
#include <set>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"

namespace lodestone {

// Where a placed or waiting request is; in the order of its life.
enum class Phase : uint8_t { kQueue, kPrefill, kHandoff, kDecode };
inline constexpr Phase kAllPhases[] = {Phase::kQueue, Phase::kPrefill, Phase::kHandoff,
                                       Phase::kDecode};
std::string_view Name(Phase phase);  // "queue", ...

// How long requests have been in the phases that they are in: one that hangs shows while it hangs,
// not when it ends. Thread-safe.
class PhaseAges {
 public:
  explicit PhaseAges(const Clock* clock = RealClock()) : clock_(*clock) {}

  // A request in a phase, from construction to destruction. Used by one thread.
  class Stay {
   public:
    Stay(PhaseAges* ages, Phase phase);  // not owned
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

    void MoveTo(Phase phase);

   private:
    PhaseAges* const ages_;
    Phase phase_;
    TimePoint entered_at_;
  };

  // Since the entry of the request that has been in `phase` for longest; 0 if there is none.
  double OldestSeconds(Phase phase) const;

 private:
  TimePoint Enter(Phase phase);
  void Leave(Phase phase, TimePoint entered_at);

  const Clock& clock_;
  mutable Mutex mutex_;
  std::multiset<TimePoint> entered_at_[std::size(kAllPhases)] GUARDED_BY(mutex_);
};

}  // namespace lodestone

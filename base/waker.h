#pragma once

#include "base/clock.h"
#include "base/mutex.h"

namespace lodestone {

// The bell of a loop that has several sources of news: whoever has some rings it, and the loop,
// which sleeps until then, looks at all of them. Thread-safe; one thread waits.
class Waker {
 public:
  void Wake() {
    MutexLock lock(&mutex_);
    rung_ = true;
    changed_.NotifyOne();
  }

  // Returns at once if it was rung since the last return; else when it rings, or at the deadline.
  void WaitUntil(TimePoint deadline) {
    MutexLock lock(&mutex_);
    changed_.WaitUntil(&mutex_, deadline, [this]() REQUIRES(mutex_) { return rung_; });
    rung_ = false;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool rung_ GUARDED_BY(mutex_) = false;
};

}  // namespace lodestone

// Mutex, MutexLock and CondVar: std::mutex and std::condition_variable with clang's thread-safety
// annotations (no-ops under gcc). A CondVar can only wait with a deadline.
//
//   Mutex mutex_;
//   std::deque<int> items_ GUARDED_BY(mutex_);
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include <absl/base/thread_annotations.h>

#ifndef GUARDED_BY
#define GUARDED_BY(x) ABSL_GUARDED_BY(x)
#endif
#ifndef REQUIRES
#define REQUIRES(...) ABSL_EXCLUSIVE_LOCKS_REQUIRED(__VA_ARGS__)
#endif
#ifndef EXCLUDES
#define EXCLUDES(...) ABSL_LOCKS_EXCLUDED(__VA_ARGS__)
#endif

namespace lodestone {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex for its lifetime.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Waits until notified (true, possibly spuriously) or the deadline has passed (false).
  // REQUIRES: the caller holds `mutex`; it is held again on return.
  bool WaitUntil(Mutex* mutex, TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool notified = cond_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }

  // Waits until `condition()` holds or the deadline has passed; returns condition(), which is
  // called with the mutex held. For clang, a lambda that reads guarded members says so: [this]()
  // REQUIRES(mutex_) { return !items_.empty(); }
  template <typename Condition>
  bool WaitUntil(Mutex* mutex, TimePoint deadline, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    while (!condition()) {
      if (!WaitUntil(mutex, deadline)) return condition();
    }
    return true;
  }

  template <typename Condition>
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds timeout, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + timeout, condition);
  }

  void NotifyOne() { cond_.notify_one(); }
  void NotifyAll() { cond_.notify_all(); }

 private:
  std::condition_variable cond_;
};

}  // namespace lodestone

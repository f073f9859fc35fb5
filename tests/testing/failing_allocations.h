#pragma once

#include <cstdint>

namespace lodestone {

// A binary that uses this has its own operator new, and mmap as our code calls it. While an object
// lives, allocation number `fail_at` (from 0) of its thread fails: with std::bad_alloc, or with
// MAP_FAILED. The others succeed. One at a time on a thread.
class FailingAllocation {
 public:
  explicit FailingAllocation(int64_t fail_at);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  // Allocations so far.
  static int64_t count();
};

// While it lives, allocations by operator new of at least `bytes` fail, on all threads. One at a
// time.
class FailingLargeAllocations {
 public:
  explicit FailingLargeAllocations(int64_t bytes);
  ~FailingLargeAllocations();
  FailingLargeAllocations(const FailingLargeAllocations&) = delete;
  FailingLargeAllocations& operator=(const FailingLargeAllocations&) = delete;

  int64_t num_failures() const;
};

// While it lives, allocations of its thread neither fail nor count: for what stands for another
// process.
class UnfailingAllocations {
 public:
  UnfailingAllocations();
  ~UnfailingAllocations();
  UnfailingAllocations(const UnfailingAllocations&) = delete;
  UnfailingAllocations& operator=(const UnfailingAllocations&) = delete;

 private:
  const bool was_armed_;
};

// Calls attempt(arm) again and again, first with the first allocation failing, then the one
// `stride` later, and so on, until an attempt gets through without a failure. An attempt makes what
// it needs and then calls arm(part): only allocations inside of part() count, and it must let no
// exception out. Returns the number of failures.
template <typename Attempt>
int64_t FailEveryAllocation(Attempt attempt, int64_t stride = 1) {
  for (int64_t failures = 0;; ++failures) {
    bool failed = false;
    attempt([&failed, fail_at = failures * stride](auto&& part) {
      const FailingAllocation failing(fail_at);
      part();
      failed = FailingAllocation::count() > fail_at;
    });
    if (!failed) return failures;
  }
}

}  // namespace lodestone

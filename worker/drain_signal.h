#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lodestone {

// An operator's wish that this worker drains (AdminService.Drain); SIGTERM is the other way to ask.
// Thread-safe.
class DrainSignal {
 public:
  // `timeout` 0: the worker's own. The first one counts.
  void Request(std::chrono::milliseconds timeout) {
    int64_t none = kNone;
    timeout_ms_.compare_exchange_strong(none, timeout.count());
  }
  bool requested() const { return timeout_ms_ != kNone; }
  // The wished timeout, or `otherwise` if there is none.
  std::chrono::milliseconds TimeoutOr(std::chrono::milliseconds otherwise) const {
    const int64_t wished = timeout_ms_;
    return wished > 0 ? std::chrono::milliseconds(wished) : otherwise;
  }

 private:
  static constexpr int64_t kNone = -1;

  std::atomic<int64_t> timeout_ms_{kNone};
};

}  // namespace lodestone

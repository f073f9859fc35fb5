#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

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

// How long running requests still have, once an operator or the process (`end_requested`) asks for
// the end. `signal` may be null; `own` is the worker's own timeout.
inline std::optional<std::chrono::milliseconds> DrainTime(
    const DrainSignal* signal, const std::function<bool()>& end_requested,
    std::chrono::milliseconds own) {
  if (signal != nullptr && signal->requested()) return signal->TimeoutOr(own);
  if (end_requested()) return own;
  return std::nullopt;
}

}  // namespace lodestone

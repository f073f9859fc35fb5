#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace lodestone {

enum class WorkerState : uint8_t { kLoading, kReady, kDraining, kUnhealthy };

// What a worker's loop says of itself, for its routers and operators.
struct WorkerStatus {
  WorkerState state = WorkerState::kLoading;
  std::string reason = {};      // of a state other than ready
  int64_t queued_tokens = 0;    // prompt tokens not yet computed, running requests included
  int64_t queued_requests = 0;  // waiting for their first chunk
  int64_t running_requests = 0;
  int64_t waiting_transfer = 0;   // decode: leases whose rows are arriving
  int64_t waiting_prealloc = 0;   // decode: leases without a row yet
  int64_t inflight_handoffs = 0;  // prefill: computed, not yet adopted
  int64_t live_leases = 0;
  std::vector<std::string> linked_instances = {};
  std::vector<std::string> refused_links = {};
};

// The newest status. The loop writes, other threads read. Thread-safe.
class StatusBoard {
 public:
  WorkerStatus Get() const {
    MutexLock lock(&mutex_);
    return status_;
  }
  void Set(WorkerStatus status) {
    MutexLock lock(&mutex_);
    const bool changed = status.state != status_.state;
    status_ = std::move(status);
    if (changed) state_changed_.NotifyAll();
  }
  // Returns when the state is not `known` any more, or at the deadline.
  void WaitForOtherState(WorkerState known, std::chrono::steady_clock::time_point deadline) const {
    MutexLock lock(&mutex_);
    state_changed_.WaitUntil(&mutex_, deadline,
                             [&]() REQUIRES(mutex_) { return status_.state != known; });
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar state_changed_;
  WorkerStatus status_ GUARDED_BY(mutex_);
};

}  // namespace lodestone

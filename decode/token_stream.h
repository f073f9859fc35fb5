#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "base/sampling_params.h"

namespace lodestone {

// What happened to one lease in a step. With a finish reason it is the last event of the lease.
struct LeaseEvent {
  LeaseId lease;
  std::vector<GeneratedToken> tokens = {};
  FinishReason finish = FinishReason::kNone;
  absl::Status error = absl::OkStatus();  // with FinishReason::kError
};

// Events on their way to one router: the loop adds, the stream's writer takes. Bounded, so that a
// router that stops reading costs bounded memory: its stream ends then, and its leases die
// with it. Thread-safe.
class TokenStream {
 public:
  static constexpr size_t kMaxEvents = 65'536;

  // `notify` is called after events were added or the stream has ended, on the adding thread,
  // without a lock held.
  explicit TokenStream(std::function<void()> notify) : notify_(std::move(notify)) {}

  // Events of one step. Dropped once the stream has ended.
  void Add(std::vector<LeaseEvent> events);
  // Nothing more will be added: the worker is going away.
  void End(const absl::Status& why);

  // Everything added since the last call.
  std::vector<LeaseEvent> TakeAll();
  // Not OK once the stream has ended: the writer must end the call with this status, after the
  // events that TakeAll still gives. RESOURCE_EXHAUSTED if the reader was too slow.
  absl::Status status() const;

 private:
  const std::function<void()> notify_;
  mutable Mutex mutex_;
  std::vector<LeaseEvent> events_ GUARDED_BY(mutex_);
  absl::Status status_ GUARDED_BY(mutex_);
};

}  // namespace lodestone

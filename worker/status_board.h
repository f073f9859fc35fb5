#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvtransfer/link.h"
#include "runtime/device.h"

namespace lodestone {

enum class LoopState : uint8_t { kLoading, kReady, kDraining, kUnhealthy };
inline constexpr LoopState kAllLoopStates[] = {LoopState::kLoading, LoopState::kReady,
                                               LoopState::kDraining, LoopState::kUnhealthy};
std::string_view Name(LoopState state);  // "loading", ...

// What a worker's loop says of itself, for its routers and operators.
struct WorkerStatus {
  LoopState state = LoopState::kLoading;
  std::string reason = {};      // of a state other than ready
  int64_t queued_tokens = 0;    // prompt tokens not yet computed, running requests included
  int64_t queued_requests = 0;  // waiting for their first chunk
  int64_t running_requests = 0;
  int64_t waiting_transfer = 0;   // decode: leases whose rows are arriving
  int64_t waiting_prealloc = 0;   // decode: leases without a row yet
  int64_t inflight_handoffs = 0;  // prefill: computed, not yet adopted
  int64_t live_leases = 0;
  int64_t num_steps = 0;  // of the engine, since the start
  std::vector<LinkStatus> links = {};              // prefill: to decode workers
  std::vector<std::string> linked_instances = {};  // decode: prefill workers whose link is up
  std::vector<std::string> refused_links = {};
};

// A loop that sets no status and notes no progress for so long hangs: a router is to hear of it
// within 5 s. The CPU notes progress after each layer of a step, of which `kHangLayerTokens` tokens
// must be done in that time; a CUDA device takes all layers at once: there it is a whole step of
// `kHangCudaStepTokens` tokens. A worker of longer steps gets more time.
inline constexpr std::chrono::milliseconds kLoopHangs{4'000};
inline constexpr int64_t kHangLayerTokens = 512;
inline constexpr int64_t kHangCudaStepTokens = 4096;

// kLoopHangs for each so many tokens of a step.
std::chrono::milliseconds HangLimitFor(int64_t step_tokens, DeviceId device);

// The newest status. The loop writes, other threads read. Thread-safe.
class StatusBoard {
 public:
  explicit StatusBoard(const Clock* clock = RealClock())
      : clock_(*clock), state_since_(clock->Now()) {}

  void SetHangLimit(std::chrono::milliseconds limit);  // kLoopHangs at first
  // Unhealthy if the loop hangs. Loading may take as long as it takes.
  WorkerStatus Get() const;
  void Set(WorkerStatus status);
  // The loop is in a turn that takes long, and gets on with it.
  void NoteProgress();
  // The state and for how long it has been that.
  std::pair<LoopState, std::chrono::nanoseconds> StateAndAge() const;
  // Returns when the state is not `known` any more, or at the deadline. It may see the begin and
  // the end of a hang as late as that.
  void WaitForOtherState(LoopState known, TimePoint deadline) const;
  // Since the last change of num_steps; nullopt before the first one.
  std::optional<std::chrono::nanoseconds> SinceLastStep() const;

 private:
  // How long ago the loop turned or got on, if it hangs.
  std::optional<std::chrono::nanoseconds> HangingFor() const REQUIRES(mutex_);
  LoopState State() const REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  mutable CondVar state_changed_;
  std::chrono::milliseconds hang_limit_ GUARDED_BY(mutex_) = kLoopHangs;
  WorkerStatus status_ GUARDED_BY(mutex_);
  TimePoint state_since_ GUARDED_BY(mutex_);  // of status_.state
  std::optional<TimePoint> last_turn_ GUARDED_BY(mutex_);  // or progress; none: it has not begun
  std::optional<TimePoint> last_step_ GUARDED_BY(mutex_);
};

}  // namespace lodestone

#include "worker/status_board.h"

#include <utility>

namespace lodestone {

std::string_view Name(LoopState state) {
  switch (state) {
    case LoopState::kLoading:
      return "loading";
    case LoopState::kReady:
      return "ready";
    case LoopState::kDraining:
      return "draining";
    case LoopState::kUnhealthy:
      return "unhealthy";
  }
  return "";
}

WorkerStatus StatusBoard::Get() const {
  MutexLock lock(&mutex_);
  WorkerStatus status = status_;
  if (const auto hanging = HangingFor()) {
    status.state = LoopState::kUnhealthy;
    status.reason =
        "the loop has not turned for " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(*hanging).count()) +
        " s, limit is " + std::to_string(kLoopHangs.count()) + " s";
  }
  return status;
}

void StatusBoard::Set(WorkerStatus status) {
  MutexLock lock(&mutex_);
  const LoopState before = State();
  if (status.state != status_.state || before != status_.state) state_since_ = clock_.Now();
  status_ = std::move(status);
  last_set_ = clock_.Now();
  if (status_.state != before) state_changed_.NotifyAll();
}

std::pair<LoopState, std::chrono::nanoseconds> StatusBoard::StateAndAge() const {
  MutexLock lock(&mutex_);
  if (const auto hanging = HangingFor()) return {LoopState::kUnhealthy, *hanging - kLoopHangs};
  return {status_.state, clock_.Now() - state_since_};
}

void StatusBoard::WaitForOtherState(LoopState known, TimePoint deadline) const {
  MutexLock lock(&mutex_);
  state_changed_.WaitUntil(&mutex_, deadline,
                           [&]() REQUIRES(mutex_) { return State() != known; });
}

std::optional<std::chrono::nanoseconds> StatusBoard::HangingFor() const {
  if (!last_set_) return std::nullopt;
  const std::chrono::nanoseconds age = clock_.Now() - *last_set_;
  if (age <= kLoopHangs) return std::nullopt;
  return age;
}

LoopState StatusBoard::State() const {
  return HangingFor() ? LoopState::kUnhealthy : status_.state;
}

}  // namespace lodestone

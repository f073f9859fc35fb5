#include "worker/status_board.h"

#include <algorithm>
#include <utility>

namespace lodestone {
namespace {

std::string Seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::chrono::milliseconds HangLimitFor(int64_t step_tokens, DeviceId device) {
  const int64_t tokens = device.is_host() ? kHangLayerTokens : kHangCudaStepTokens;
  return kLoopHangs * std::max<int64_t>(1, step_tokens / tokens);
}

void StatusBoard::SetHangLimit(std::chrono::milliseconds limit) {
  MutexLock lock(&mutex_);
  hang_limit_ = limit;
}

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
        "the loop has not turned for " + Seconds(*hanging) + ", limit is " + Seconds(hang_limit_);
  }
  return status;
}

void StatusBoard::Set(WorkerStatus status) {
  MutexLock lock(&mutex_);
  const LoopState before = State();
  if (status.num_steps != status_.num_steps) last_step_ = clock_.Now();
  if (status.state != status_.state || before != status_.state) state_since_ = clock_.Now();
  status_ = std::move(status);
  last_turn_ = clock_.Now();
  if (status_.state != before) state_changed_.NotifyAll();
}

void StatusBoard::NoteProgress() {
  MutexLock lock(&mutex_);
  const LoopState before = State();
  last_turn_ = clock_.Now();
  if (State() != before) state_changed_.NotifyAll();
}

std::pair<LoopState, std::chrono::nanoseconds> StatusBoard::StateAndAge() const {
  MutexLock lock(&mutex_);
  if (const auto hanging = HangingFor()) return {LoopState::kUnhealthy, *hanging - hang_limit_};
  return {status_.state, clock_.Now() - state_since_};
}

void StatusBoard::WaitForOtherState(LoopState known, TimePoint deadline) const {
  MutexLock lock(&mutex_);
  state_changed_.WaitUntil(&mutex_, deadline,
                           [&]() REQUIRES(mutex_) { return State() != known; });
}

std::optional<std::chrono::nanoseconds> StatusBoard::SinceLastStep() const {
  MutexLock lock(&mutex_);
  if (!last_step_) return std::nullopt;
  return clock_.Now() - *last_step_;
}

std::optional<std::chrono::nanoseconds> StatusBoard::HangingFor() const {
  if (!last_turn_ || status_.state == LoopState::kLoading) return std::nullopt;
  const std::chrono::nanoseconds age = clock_.Now() - *last_turn_;
  if (age <= hang_limit_) return std::nullopt;
  return age;
}

LoopState StatusBoard::State() const {
  return HangingFor() ? LoopState::kUnhealthy : status_.state;
}

}  // namespace lodestone

#include "router/phase_ages.h"

#include <chrono>

namespace lodestone {

std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kQueue:
      return "queue";
    case Phase::kPrefill:
      return "prefill";
    case Phase::kHandoff:
      return "handoff";
    case Phase::kDecode:
      return "decode";
  }
  return "";
}

PhaseAges::Stay::Stay(PhaseAges* ages, Phase phase)
    : ages_(ages), phase_(phase), entered_at_(ages->Enter(phase)) {}

PhaseAges::Stay::~Stay() { ages_->Leave(phase_, entered_at_); }

void PhaseAges::Stay::MoveTo(Phase phase) {
  ages_->Leave(phase_, entered_at_);
  phase_ = phase;
  entered_at_ = ages_->Enter(phase);
}

double PhaseAges::OldestSeconds(Phase phase) const {
  MutexLock lock(&mutex_);
  const std::multiset<TimePoint>& entered_at = entered_at_[static_cast<size_t>(phase)];
  if (entered_at.empty()) return 0;
  return std::chrono::duration<double>(clock_.Now() - *entered_at.begin()).count();
}

TimePoint PhaseAges::Enter(Phase phase) {
  const TimePoint now = clock_.Now();
  MutexLock lock(&mutex_);
  entered_at_[static_cast<size_t>(phase)].insert(now);
  return now;
}

void PhaseAges::Leave(Phase phase, TimePoint entered_at) {
  MutexLock lock(&mutex_);
  std::multiset<TimePoint>& all = entered_at_[static_cast<size_t>(phase)];
  all.erase(all.find(entered_at));
}

}  // namespace lodestone

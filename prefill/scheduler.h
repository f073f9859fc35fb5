#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "prefill/requests.h"

namespace lodestone {

struct PrefillLimits {
  int64_t max_queued_requests = 256;
  int64_t max_queued_tokens = int64_t{4} << 20;  // prompt tokens not yet computed
  int64_t max_running = 4;     // prompts computed in turns; more would only delay each other
  int64_t chunk_tokens = 512;  // of one step
  // Rows of logits that one step can compute: one a prompt, or one a token of prompts whose
  // log-probabilities are wanted.
  int64_t logit_rows = 16;
};

// Which requests wait, which are computed, and which chunks form the next step. A queued request
// holds no memory. Running ones take turns: each step begins with the one that was served longest
// ago, which gets up to a whole chunk; others fill what it leaves. Worker loop only.
class PrefillScheduler {
 public:
  explicit PrefillScheduler(const PrefillLimits& limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED, with both numbers, beyond the limits; `job` is then left untouched.
  absl::Status Enqueue(std::unique_ptr<PrefillJob>&& job);

  // The next queued job if one may start, in order of arrival; null otherwise. The caller gives it
  // a sequence and calls Start, or PutBack if there is no memory for it now.
  std::unique_ptr<PrefillJob> TakeNext();
  void PutBack(std::unique_ptr<PrefillJob> job);
  void Start(std::unique_ptr<PrefillJob> job);

  // Parts of the next step; empty if nothing runs. Rotates the order.
  std::vector<StepPart> NextStep();

  // The running job of a sequence; null if none.
  PrefillJob* FindRunning(const Sequence* sequence);
  bool HasLease(LeaseId lease) const;
  // Take a job out, queued or running; null if there is none.
  std::unique_ptr<PrefillJob> Remove(PrefillTicket ticket);
  std::unique_ptr<PrefillJob> RemoveLease(LeaseId lease);
  std::unique_ptr<PrefillJob> RemoveAny();

  int64_t num_queued() const { return static_cast<int64_t>(queued_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t queued_tokens() const;  // of queued and running jobs

 private:
  template <typename Matches>
  std::unique_ptr<PrefillJob> RemoveIf(Matches matches);

  const PrefillLimits limits_;
  std::deque<std::unique_ptr<PrefillJob>> queued_;
  std::list<std::unique_ptr<PrefillJob>> running_;  // next to be served first
};

}  // namespace lodestone

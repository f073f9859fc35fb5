// What RequestFlow keeps of a request while it runs. For request_flow.cc and request_attempt.cc
// alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "router/request_flow.h"

namespace lodestone {

// What a choice needs to end at the request's deadline, the last write to its client included.
inline constexpr std::chrono::seconds kEndGrace{300};

inline absl::Status LateError() {
  return absl::DeadlineExceededError("a choice of the request did not end at its deadline");
}

inline double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(RealClock()->Now() - start).count();
}

// One choice of a request on its way through its attempts.
struct RequestFlow::Life {
  Family& family;
  const Request& request;
  SamplingParams sampling;
  TokenSink& sink;
  CancelSource& client;
  std::optional<Admission::Ticket>
      ticket{};  // none: a probe, or it runs on that of the first choice

  // The attempt.
  int attempt = 1;
  Placement place{};
  LeaseId lease{};
  std::vector<LeaseId> fork_leases{};
  int64_t reserved_bytes = 0;
  bool awaits_handoff = false;  // of another choice
  std::string phase = "queue";

  // Over all attempts.
  bool has_scores = false;  // of the prompt
  std::vector<TokenId> delivered{};
  Outcome outcome{};
  bool ended = false;
  double attempts_without_progress = 0;  // deaths of workers by their shares
  std::set<std::string> avoid{};  // instance ids, to blame for an attempt since the last token
  TimePoint replay_deadline = TimePoint::max();  // while a worker to take over is awaited
  TimePoint first_token_at{};

  bool is_replay() const { return attempt > 1; }
  // What fails then says nothing of the worker.
  bool out_of_time() const { return RealClock()->Now() >= request.deadline; }
  int64_t tokens_to_prefill() const {
    return static_cast<int64_t>(request.prompt.size() + delivered.size());
  }
  int64_t tokens_to_come() const {
    return request.sampling.max_new_tokens - static_cast<int64_t>(delivered.size());
  }
  int64_t num_forks() const;  // that the next attempt begins
  void Blame(const Worker& worker) { avoid.insert(worker.hello.instance_id); }
  void End(FinishReason reason) {
    ended = true;
    outcome.finish_reason = reason;
  }
  // The worker's load without this sequence: a guess until its next report; if it is wrong, the
  // next reservation is refused.
  void GiveBackLoad() const {
    place.decode->load.free_bytes += reserved_bytes;
    ++place.decode->load.free_sequences;
  }
};

// All choices of a request. The attempt of the first one that succeeds in prefill begins the
// others.
struct RequestFlow::Family {
  explicit Family(asio::io_context& loop) : forks(loop), handed_over(loop) {}

  std::vector<std::unique_ptr<Life>> lives{};
  CancelSource stop{};  // the client is gone, or a choice has failed
  bool begun = false;
  PromptLogprobs prompt_logprobs{};
  TaskGroup forks;
  int64_t num_awaiting_handoff = 0;
  Event handed_over;
  std::optional<ApiError> error{};

  void Fail(ApiError why) {
    if (error.has_value()) return;
    error = std::move(why);
    stop.Cancel(absl::CancelledError("another choice of the request failed"));
  }
  void HandedOver(Life& life) {
    if (!std::exchange(life.awaits_handoff, false)) return;
    --num_awaiting_handoff;
    handed_over.Notify();
  }
  Outcome Total() const {
    Outcome total = lives.front()->outcome;
    total.usage.completion_tokens = 0;
    for (const auto& life : lives) {
      total.usage.completion_tokens += life->outcome.usage.completion_tokens;
      total.attempts = std::max(total.attempts, life->outcome.attempts);
    }
    return total;
  }
};

inline int64_t RequestFlow::Life::num_forks() const {
  return family.begun ? 0 : std::ssize(family.lives) - 1;
}

}  // namespace lodestone

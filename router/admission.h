#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "base/clock.h"
#include "router/api_error.h"
#include "router/async.h"
#include "router/limits.h"

namespace lodestone {

struct AdmissionLimits {
  int64_t max_running = kMaxRunning;
  int64_t max_queued = kMaxQueued;
  int64_t max_queued_tokens = kMaxQueuedTokens;  // of the prompts in the line
  std::chrono::milliseconds queue_timeout{60'000};
};

// The line in front of the workers. A request enters, waits until it is first, places itself while
// it holds the turn, and leaves the line; first come, first served, so a large request is not
// starved by small ones. Loop only.
class Admission {
 public:
  Admission(asio::io_context& loop, AdmissionLimits limits);

  // A place in the line and, later, among the running. Gives both back when destroyed.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // Waits for the turn. The queue's 429 at the end of the queue timeout (or `deadline`), the
    // reason of `cancel` as 499.
    Task<std::optional<ApiError>> AwaitTurn(TimePoint deadline, CancelSource& cancel);
    // Holding the turn: waits for the moment to try again, until exactly `deadline`.
    Task<void> AwaitChange(TimePoint deadline);
    // Gives up the turn and runs.
    void Run();
    // Back into the line, in front of everybody: with a new queue deadline for a request whose
    // worker died, with the old one for a request that no worker has taken yet.
    enum class Patience { kKept, kNew };
    void Return(Patience patience);
    // When this request has waited long enough.
    TimePoint queue_deadline() const { return queue_deadline_; }

   private:
    friend class Admission;
    enum class State { kQueued, kRunning };
    Ticket(Admission* admission, std::list<int64_t>::iterator place, TimePoint queue_deadline)
        : admission_(admission),
          place_(place),
          num_tokens_(*place),
          queue_deadline_(queue_deadline) {}
    Admission* admission_;
    std::list<int64_t>::iterator place_;
    int64_t num_tokens_;
    TimePoint queue_deadline_;
    State state_ = State::kQueued;
  };

  // 429 queue_full with Retry-After if the line is full: of requests or, unless it is empty, of the
  // tokens of their prompts.
  ApiOr<Ticket> Enter(int64_t num_tokens);
  // Among the running at once, whatever the limits: for what already runs on another's ticket.
  Ticket EnterRunning(int64_t num_tokens);
  // Something happened that may let the first in line go: a report, a released lease.
  void NotifyChange() { changed_.Notify(); }

  int64_t num_queued() const { return static_cast<int64_t>(line_.size()); }
  int64_t num_running() const { return num_running_; }
  int64_t queued_tokens() const { return queued_tokens_; }
  // How long until a request that comes now would run: 1..120 s.
  std::chrono::milliseconds DrainEstimate() const;
  ApiError QueueTimedOut() const;

 private:
  using Line = std::list<int64_t>;
  Line::iterator Insert(Line::iterator before, int64_t num_tokens);
  void Erase(Line::iterator place);
  ApiError QueueFull(std::string message) const;
  void Left();

  const AdmissionLimits limits_;
  Event changed_;
  Line line_;  // the tokens of each waiting request, the first has the turn
  int64_t queued_tokens_ = 0;
  int64_t num_running_ = 0;
  double seconds_between_ends_ = 1;  // smoothed
  TimePoint last_end_;
};

}  // namespace lodestone

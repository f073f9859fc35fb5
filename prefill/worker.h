#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/waker.h"
#include "engine/engine.h"
#include "kvtransfer/sender.h"
#include "monitoring/metrics.h"
#include "prefill/requests.h"
#include "prefill/scheduler.h"
#include "worker/drain_signal.h"
#include "worker/status_board.h"

namespace lodestone {

// Pointers are not owned and must outlive the worker.
struct PrefillWorkerOptions {
  Engine* engine = nullptr;
  Sender* sender = nullptr;
  const Clock* clock = nullptr;
  StatusBoard* board = nullptr;
  Metrics* metrics = nullptr;
  PrefillLimits limits;
  std::chrono::milliseconds drain_timeout{120'000};
  const DrainSignal* drain = nullptr;  // an operator's; may be null
  // Links ring it when they have news. What still rings it may outlive the worker.
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
};

// The loop of a prefill worker: take in requests, compute chunks, hand caches over. One thread runs
// Loop and owns engine, caches and sender; any thread may call Run and Cancel.
class PrefillWorker {
 public:
  explicit PrefillWorker(const PrefillWorkerOptions& options);

  // Queues a request; `done` is called exactly once. UNAVAILABLE while draining.
  PrefillTicket Run(PrefillRequest request, PrefillDone done);
  // Takes effect between two chunks; a request that has its answer already is left alone.
  void Cancel(PrefillTicket ticket);

  // Until `end_requested`, or the operator's drain signal, and the running requests have ended or
  // the drain time is over; what is left then is told so. INTERNAL if the engine failed: the
  // process must end then.
  absl::Status Loop(const std::function<bool()>& end_requested);

 private:
  struct RunCommand {
    std::unique_ptr<PrefillJob> job;
  };
  struct CancelCommand {
    PrefillTicket ticket;
  };
  using Command = std::variant<RunCommand, CancelCommand>;

  absl::Status Turn();
  void AwaitNews();
  void TakeCommands();
  bool HandleIfAny(std::optional<Command> command);
  void Handle(RunCommand command);
  void Handle(CancelCommand command);
  void Admit();
  bool StartJob(std::unique_ptr<PrefillJob> job);
  absl::Status StepOnce();
  void Answer(StepResult result);
  void TakeOutcomes();
  void TakeOutcome(const HandoffOutcome& outcome);
  void SendHeldReplies();
  std::unique_ptr<PrefillJob> TakeHeld(PrefillTicket ticket);
  void EndJob(std::unique_ptr<PrefillJob> job, const absl::Status& status);
  void PublishServing();
  void Publish(LoopState state, std::string reason);
  void End(const absl::Status& status);
  void FailAll(const absl::Status& status);
  bool HasLease(LeaseId lease) const;
  bool idle() const;
  static void Done(PrefillJob& job, absl::StatusOr<PrefillReply> reply);

  Engine& engine_;
  Sender& sender_;
  const Clock& clock_;
  StatusBoard& board_;
  const std::chrono::milliseconds drain_timeout_;
  const DrainSignal* const drain_;
  const std::shared_ptr<Waker> waker_;
  const HistogramMetric step_seconds_, step_tokens_;
  const CounterMetric prompt_tokens_, generation_tokens_;

  std::atomic<PrefillTicket> last_ticket_{0};
  std::atomic<bool> draining_{false};
  BoundedQueue<Command> commands_{4096};

  // Loop thread only.
  PrefillScheduler scheduler_;
  int64_t num_steps_ = 0;
  std::map<LeaseId, std::unique_ptr<PrefillJob>> handing_off_;  // computed, not yet adopted
};

}  // namespace lodestone

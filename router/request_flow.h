#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "router/admission.h"
#include "router/metrics.h"
#include "router/policy.h"
#include "router/request.h"
#include "router/worker_client.h"
#include "router/worker_registry.h"

namespace lodestone {

// Where the tokens of a choice go: the answer to a client. Loop only.
class TokenSink {
 public:
  struct Written {
    size_t num_tokens = 0;  // taken, from the first: fewer than all only if stopped
    bool stopped = false;   // a stop string ended the text
  };
  virtual ~TokenSink() = default;
  // Before the tokens, if the request wants log-probabilities of its prompt. Errors as in Write.
  virtual Task<absl::Status> WritePrompt(const PromptLogprobs&) { co_return absl::OkStatus(); }
  // Tokens in order, each once. An error ends the request with that status.
  virtual Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) = 0;
  // After the last token of a choice that ended well.
  virtual Task<void> End(const Outcome&) { co_return; }
};

struct FlowSettings {
  // A worker that dies takes all its requests with it, and most have no part in that: what it costs
  // is shared among them, down to a quarter of an attempt each.
  int max_attempts_without_progress = 4;
  std::chrono::milliseconds replay_wait{8'000};     // for a worker to take over
  std::chrono::milliseconds worker_wait{8'000};     // the same before the first attempt
  std::chrono::milliseconds stall_timeout{60'000};    // without a token
  std::chrono::milliseconds handoff_timeout{15'000};  // from prefill's answer to the second token
  std::chrono::milliseconds reserve_timeout{2'000};
  double replay_budget = 512;              // replays that may happen at once...
  double replay_budget_per_request = 0.1;  // ...and what each request that ends well adds to it...
  double replay_budget_per_second = 50;    // ...and each second
};

// The life of a request: place, reserve, prefill, stream; again on other workers when one dies.
// The choices of a request share one prefill and one hand-off; from their first token on each is on
// its own. Loop only.
class RequestFlow {
 public:
  RequestFlow(asio::io_context& loop, FlowSettings settings, WorkerRegistry* registry,
              Admission* admission, RouterMetrics* metrics);

  // Every token of every choice to its sink, then how they ended, together: the prompt is counted
  // once; or one error. Ends soon after `client` is cancelled, having given everything back. A
  // probe neither queues nor runs again. One sink a choice. All arguments must outlive the task.
  Task<ApiOr<Outcome>> Run(const Request& request, std::span<TokenSink* const> sinks,
                           CancelSource& client);
  // Of a request with one choice.
  Task<ApiOr<Outcome>> Run(const Request& request, TokenSink& sink, CancelSource& client);

 private:
  struct Life;
  struct Family;
  Task<void> RunToEnd(Life& life, std::optional<ApiError> error);
  Task<void> NoteLostAttempt(Life& life, absl::Status status);
  Task<std::optional<ApiError>> PlaceAndReserve(Life& life);
  ApiOr<TimePoint> WaitForPlace(const Life& life, const NoPlacement& none) const;
  ApiOr<TimePoint> WaitForWorker(const Life& life, const NoPlacement& none) const;
  Task<absl::Status> RunAttempt(Life& life);
  Task<absl::StatusOr<RunResult>> Prefill(Life& life, LeaseTokens& tokens);
  void BeginForks(Life& lead, RunResult& run, std::vector<std::unique_ptr<LeaseTokens>> tokens);
  Task<void> Guarded(Life& life, Task<void> run);
  Task<void> RunFork(Life& life, std::unique_ptr<LeaseTokens> tokens, RunResult::Start start);
  Task<absl::Status> Begin(Life& life, RunResult::Start start);
  Task<absl::Status> CopyTokens(Life& life, LeaseTokens& tokens);
  Task<absl::Status> Deliver(Life& life, std::vector<GeneratedToken> tokens);
  Task<std::optional<ApiError>> NextAttempt(Life& life, absl::Status status);
  bool MayReplay(Life& life, const absl::Status& status);
  void BlameForHandOff(Life& life, const LeaseTokens& tokens, const absl::Status& status);
  void NoteFailure(Worker& worker, const absl::Status& status);
  bool TakeReplay(TimePoint now);

  asio::io_context& loop_;
  const FlowSettings settings_;
  WorkerRegistry* const registry_;
  Admission* const admission_;
  RouterMetrics* const metrics_;
  double replay_budget_;
  TimePoint budget_filled_at_;
};

}  // namespace lodestone

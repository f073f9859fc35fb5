// One attempt of a request: prefill, hand-off, tokens, and whose fault it is if one of them fails.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "base/logging.h"
#include "base/status_macros.h"
#include "router/request_flow.h"
#include "router/request_life.h"

namespace lodestone {
namespace {

constexpr int kFailuresToOpenBreaker = 3;
constexpr std::chrono::seconds kBreakerTime{5};
constexpr std::chrono::milliseconds kBusyPrefillPause{100};
// A hand-off that had left a prefill worker before that died arrives within this.
constexpr std::chrono::seconds kOrphanedHandOff{2};

// A fault of the worker or of the way to it, not an answer to this request.
bool IsWorkerFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

// Counts as load of a prefill worker while it lives.
class InflightTokens {
 public:
  InflightTokens(Worker* worker, int64_t count) : worker_(*worker), count_(count) {
    worker_.inflight_tokens += count_;
  }
  InflightTokens(const InflightTokens&) = delete;
  InflightTokens& operator=(const InflightTokens&) = delete;
  ~InflightTokens() { worker_.inflight_tokens -= count_; }

 private:
  Worker& worker_;
  const int64_t count_;
};

// The first tokens from the decode worker: they show that the hand-off has arrived.
Task<absl::StatusOr<LeaseTokens::Batch>> AwaitHandOff(LeaseTokens& tokens, Worker& prefill,
                                                      TimePoint deadline, CancelSource& client) {
  CancelSource stop;  // whichever comes first: client gone, prefill worker gone
  const auto forward = [&stop](const absl::Status& reason) { stop.Cancel(reason); };
  const CancelSource::Registration on_client = client.OnCancel(forward);
  const CancelSource::Registration on_gone = prefill.gone.OnCancel(forward);
  absl::StatusOr<LeaseTokens::Batch> batch = co_await tokens.Next(deadline, stop);
  if (batch.ok() || !stop.cancelled() || client.cancelled()) co_return batch;
  co_return co_await tokens.Next(std::min(deadline, RealClock()->Now() + kOrphanedHandOff), client);
}

}  // namespace

Task<absl::Status> RequestFlow::RunAttempt(Life& life) {
  const auto [prefill, decode] = life.place;
  if (!life.request.is_probe) metrics_->Placed(*prefill, *decode, LinkIsUp(*prefill, *decode));
  life.outcome.prefill_worker = prefill->hello.instance_id;
  life.outcome.decode_worker = decode->hello.instance_id;
  // Open from here on: naming the lease keeps it alive. Its destructor releases a lease that is
  // still live, so a failed prefill cannot leak decode memory.
  std::unique_ptr<LeaseTokens> tokens = decode->decode->Subscribe(life.lease);
  std::vector<std::unique_ptr<LeaseTokens>> fork_tokens;
  for (const LeaseId fork : life.fork_leases)
    fork_tokens.push_back(decode->decode->Subscribe(fork));
  life.phase = "prefill";
  absl::StatusOr<RunResult> run = co_await Prefill(life, *tokens);
  absl::Status status = run.status();
  if (run.ok()) {
    BeginForks(life, *run, std::move(fork_tokens));
    status = co_await Begin(life, std::move(run->choices.front()));
  } else {
    for (size_t i = 0; i < life.fork_leases.size(); ++i) life.GiveBackLoad();
    fork_tokens.clear();
  }
  if (status.ok() && !life.ended) {
    life.phase = "decode";
    status = co_await CopyTokens(life, *tokens);
  }
  // The other choices have their caches from this lease, even if its own tokens have ended.
  while (status.ok() && life.family.num_awaiting_handoff > 0) {
    const bool woken =
        co_await life.family.handed_over.WaitUntil(life.request.deadline + kEndGrace);
    if (!woken) status = LateError();
  }
  tokens = nullptr;
  life.GiveBackLoad();
  co_return status;
}

// The first tokens of the other choices are there: from here on they run beside this one.
void RequestFlow::BeginForks(Life& lead, RunResult& run,
                             std::vector<std::unique_ptr<LeaseTokens>> tokens) {
  Family& family = lead.family;
  if (lead.request.prompt_logprobs && !lead.has_scores) {
    family.prompt_logprobs = std::move(run.prompt_logprobs);
  }
  family.begun = true;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Life& life = *family.lives[i + 1];
    life.attempt = lead.attempt;
    life.place = lead.place;
    life.lease = lead.fork_leases[i];
    life.reserved_bytes = lead.reserved_bytes;
    life.outcome = lead.outcome;
    life.first_token_at = lead.first_token_at;
    life.awaits_handoff = true;
    ++family.num_awaiting_handoff;
    family.forks.Spawn(
        Guarded(life, RunFork(life, std::move(tokens[i]), std::move(run.choices[i + 1]))));
  }
}

Task<void> RequestFlow::RunFork(Life& life, std::unique_ptr<LeaseTokens> tokens,
                                RunResult::Start start) {
  absl::Status status = co_await Begin(life, std::move(start));
  if (status.ok() && !life.ended) {
    life.phase = "decode";
    status = co_await CopyTokens(life, *tokens);
  }
  life.family.HandedOver(life);
  tokens = nullptr;
  life.GiveBackLoad();
  std::optional<ApiError> error = co_await NextAttempt(life, status);
  co_await RunToEnd(life, std::move(error));
}

// Runs the prompt: the first token of every choice that the attempt is for.
Task<absl::StatusOr<RunResult>> RequestFlow::Prefill(Life& life, LeaseTokens& tokens) {
  const PhaseAges::Stay stay = metrics_->Enter(Phase::kPrefill);
  const std::shared_ptr<Worker> prefill = life.place.prefill;
  const std::shared_ptr<Worker> decode = life.place.decode;
  RunArgs args{.request_id = life.request.id.ToString(),
               .attempt = life.attempt,
               .lease = life.lease,
               .decode_instance_id = decode->hello.instance_id,
               .decode_address = decode->hello.address,
               .tokens = life.request.prompt,
               .num_generated = static_cast<int64_t>(life.delivered.size()),
               .sampling = life.sampling,
               .prompt_logprobs = life.request.prompt_logprobs && !life.has_scores};
  for (size_t i = 0; i < life.fork_leases.size(); ++i) {
    args.forks.push_back({life.fork_leases[i], life.request.fork_seeds[i]});
  }
  args.tokens.insert(args.tokens.end(), life.delivered.begin(), life.delivered.end());

  CancelSource stop;  // whichever comes first: client gone, lease lost, worker gone
  const auto forward = [&stop](const absl::Status& reason) { stop.Cancel(reason); };
  const CancelSource::Registration on_client = life.client.OnCancel(forward);
  const CancelSource::Registration on_lease = tokens.failure().OnCancel(forward);
  const CancelSource::Registration on_gone = prefill->gone.OnCancel(forward);
  const TimePoint started_at = RealClock()->Now();
  absl::StatusOr<RunResult> run(absl::UnknownError(""));
  {
    const InflightTokens inflight(prefill.get(), life.tokens_to_prefill());
    run = co_await prefill->prefill->Run(args, life.request.deadline, stop);
  }
  if (!run.ok()) {
    if (!stop.cancelled() && !life.out_of_time()) NoteFailure(*prefill, run.status());
    if (tokens.failure().cancelled()) {
      BlameForHandOff(life, tokens, tokens.failure().reason());
    } else {
      life.Blame(*prefill);
    }
    if (run.status().code() == absl::StatusCode::kResourceExhausted) {
      co_await SleepUntil(loop_, RealClock()->Now() + kBusyPrefillPause);
    }
    co_return run.status();
  }
  prefill->consecutive_failures = 0;
  prefill->lost_attempts = 0;
  RequestTimings& timings = life.outcome.timings;
  timings.prefill_seconds += SecondsSince(started_at);
  timings.handoff_bytes += run->handoff_bytes;
  life.outcome.usage.cached_tokens = run->cached_tokens;
  life.first_token_at = RealClock()->Now();
  co_return run;
}

// Delivers what prefill made of a choice.
Task<absl::Status> RequestFlow::Begin(Life& life, RunResult::Start start) {
  if (life.request.prompt_logprobs && !std::exchange(life.has_scores, true)) {
    CO_RETURN_IF_ERROR(co_await life.sink.WritePrompt(life.family.prompt_logprobs));
  }
  if (life.request.scores_only) {
    life.End(FinishReason::kLength);
    co_return absl::OkStatus();
  }
  if (start.finish_reason == FinishReason::kStop) {  // the stop token itself is not delivered
    life.End(FinishReason::kStop);
    co_return absl::OkStatus();
  }
  std::vector<GeneratedToken> first(1, std::move(start.first_token));
  CO_RETURN_IF_ERROR(co_await Deliver(life, std::move(first)));
  if (!life.ended && start.finish_reason != FinishReason::kNone) life.End(start.finish_reason);
  co_return absl::OkStatus();
}

// The second and later tokens, as the decode worker makes them.
Task<absl::Status> RequestFlow::CopyTokens(Life& life, LeaseTokens& tokens) {
  PhaseAges::Stay stay = metrics_->Enter(Phase::kHandoff);
  const TimePoint started_at = RealClock()->Now();
  bool is_first = true;
  while (!life.ended) {
    const TimePoint stalled_at =
        RealClock()->Now() + (is_first ? settings_.handoff_timeout : settings_.stall_timeout);
    const TimePoint deadline = std::min(stalled_at, life.request.deadline);
    Task<absl::StatusOr<LeaseTokens::Batch>> next =
        is_first ? AwaitHandOff(tokens, *life.place.prefill, deadline, life.client)
                 : tokens.Next(deadline, life.client);
    absl::StatusOr<LeaseTokens::Batch> batch = co_await std::move(next);
    if (!batch.ok()) {
      if (life.client.cancelled() || life.out_of_time()) co_return batch.status();
      if (is_first) {
        BlameForHandOff(life, tokens, batch.status());
      } else {
        life.Blame(*life.place.decode);
        NoteFailure(*life.place.decode, batch.status());
      }
      co_return batch.status();
    }
    if (std::exchange(is_first, false)) {
      stay.MoveTo(Phase::kDecode);
      life.family.HandedOver(life);
      life.outcome.timings.handoff_seconds += SecondsSince(life.first_token_at);
      life.place.decode->consecutive_failures = 0;
      life.place.decode->lost_attempts = 0;
    }
    const FinishReason finish_reason = batch->finish_reason;
    CO_RETURN_IF_ERROR(co_await Deliver(life, std::move(batch->tokens)));
    if (!life.ended && finish_reason != FinishReason::kNone) life.End(finish_reason);
  }
  life.outcome.timings.decode_seconds += SecondsSince(started_at);
  co_return absl::OkStatus();
}

// Hands new tokens on. A token seen before is dropped; a gap is a bug of the worker.
Task<absl::Status> RequestFlow::Deliver(Life& life, std::vector<GeneratedToken> tokens) {
  int64_t expected = static_cast<int64_t>(life.delivered.size());
  std::erase_if(tokens, [&](const GeneratedToken& token) {
    if (token.index < expected) return true;
    if (token.index == expected) ++expected;
    return false;
  });
  if (!tokens.empty() && tokens.back().index >= expected) {
    co_return absl::InternalError(
        absl::StrCat("token ", tokens.back().index, " arrived, expected token ", expected));
  }
  if (tokens.empty()) co_return absl::OkStatus();
  life.attempts_without_progress = 0;
  life.avoid.clear();
  for (const GeneratedToken& token : tokens) life.delivered.push_back(token.id);
  CO_ASSIGN_OR_RETURN(const TokenSink::Written written, co_await life.sink.Write(tokens));
  if (written.stopped) {
    // What a worker made beyond the stop string depends on timing; the client is not told of it.
    life.delivered.resize(life.delivered.size() - (tokens.size() - written.num_tokens));
    life.End(FinishReason::kStop);
  } else if (life.tokens_to_come() <= 0) {
    life.End(FinishReason::kLength);
  }
  co_return absl::OkStatus();
}

// For a lease that failed before its first token, whose fault may be either side's.
void RequestFlow::BlameForHandOff(Life& life, const LeaseTokens& tokens,
                                  const absl::Status& status) {
  Worker& prefill = *life.place.prefill;
  Worker& decode = *life.place.decode;
  // A failed hand-off of several choices is one failure.
  const auto note = [&]() {
    if (!life.awaits_handoff) NoteFailure(decode, status);
  };
  if (tokens.stream_ended()) {
    life.Blame(decode);
    note();
    return;
  }
  life.Blame(prefill);
  // How a decode worker reports a hand-off that its prefill worker abandoned.
  if (status.code() == absl::StatusCode::kUnavailable) return;
  life.Blame(decode);
  const bool stalled = status.code() == absl::StatusCode::kDeadlineExceeded;
  if (stalled && !prefill.gone.cancelled()) note();
}

void RequestFlow::NoteFailure(Worker& worker, const absl::Status& status) {
  if (!IsWorkerFault(status)) return;
  if (++worker.consecutive_failures < kFailuresToOpenBreaker) return;
  worker.consecutive_failures = 0;
  worker.breaker_open_until = RealClock()->Now() + kBreakerTime;
  LOG(WARNING) << Field("worker", worker.hello.instance_id) << Name(worker.hello.role)
               << " worker failed " << kFailuresToOpenBreaker
               << " times in a row, last: " << status.ToString() << "; avoided for "
               << kBreakerTime.count() << " s";
}

}  // namespace lodestone

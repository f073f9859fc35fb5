#include "router/request_flow.h"

#include <algorithm>
#include <memory>
#include <new>

#include <absl/strings/str_cat.h>

#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone {
namespace {

constexpr int kFailuresToOpenBreaker = 3;
constexpr std::chrono::seconds kBreakerTime{5};
constexpr std::chrono::milliseconds kBusyPrefillPause{100};
// A hand-off that had left a prefill worker before that died arrives within this.
constexpr std::chrono::seconds kOrphanedHandOff{2};

// When a connection has broken, the registry knows within this whether the worker is gone.
constexpr std::chrono::milliseconds kDeathIsKnown{300};
constexpr std::chrono::milliseconds kDeathPoll{50};
constexpr int64_t kMostShares = 4;  // of the death of a worker

// What a choice needs to end at the request's deadline, the last write to its client included.
constexpr std::chrono::seconds kEndGrace{300};

absl::Status LateError() {
  return absl::DeadlineExceededError("a choice of the request did not end at its deadline");
}

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(RealClock()->Now() - start).count();
}

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

// Would the same request, run again, fail the same way?
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

bool IsUp(const Worker& worker) {
  return !worker.gone.cancelled() && worker.load.state == WorkerState::kReady;
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

// One choice of a request on its way through its attempts.
struct RequestFlow::Life {
  Family& family;
  const Request& request;
  SamplingParams sampling;
  TokenSink& sink;
  CancelSource& client;
  std::optional<Admission::Ticket> ticket{};  // none: a probe, or it runs on that of the first choice

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

// All choices of a request. The attempt of the first one that succeeds in prefill begins the others.
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

int64_t RequestFlow::Life::num_forks() const {
  return family.begun ? 0 : std::ssize(family.lives) - 1;
}

RequestFlow::RequestFlow(asio::io_context& loop, FlowSettings settings, WorkerRegistry* registry,
                         Admission* admission, RouterMetrics* metrics)
    : loop_(loop),
      settings_(settings),
      registry_(registry),
      admission_(admission),
      metrics_(metrics),
      replay_budget_(settings.replay_budget),
      budget_filled_at_(RealClock()->Now()) {}

Task<ApiOr<Outcome>> RequestFlow::Run(const Request& request, TokenSink& sink,
                                      CancelSource& client) {
  TokenSink* const sinks[] = {&sink};
  co_return co_await Run(request, sinks, client);
}

Task<ApiOr<Outcome>> RequestFlow::Run(const Request& request, std::span<TokenSink* const> sinks,
                                      CancelSource& client) {
  CHECK(sinks.size() == request.fork_seeds.size() + 1) << sinks.size() << " sinks";
  Family family(loop_);
  const CancelSource::Registration on_client =
      client.OnCancel([&family](const absl::Status& reason) { family.stop.Cancel(reason); });
  for (size_t i = 0; i < sinks.size(); ++i) {
    family.lives.push_back(std::make_unique<Life>(Life{.family = family,
                                                       .request = request,
                                                       .sampling = request.sampling,
                                                       .sink = *sinks[i],
                                                       .client = family.stop}));
    if (i > 0) family.lives.back()->sampling.seed = request.fork_seeds[i - 1];
  }
  Life& first = *family.lives.front();
  if (!request.is_probe) {
    ApiOr<Admission::Ticket> entered = admission_->Enter(static_cast<int64_t>(request.prompt.size()));
    if (!entered.ok()) co_return entered.error();
    first.ticket.emplace(std::move(entered).value());
  }
  co_await Guarded(first, RunToEnd(first, std::nullopt));
  const std::function<void()> stop = [&family] { family.stop.Cancel(LateError()); };
  co_await family.forks.WaitForEnd(request.deadline + kEndGrace, stop);
  if (family.error.has_value()) co_return *std::move(family.error);
  if (!request.is_probe) {
    replay_budget_ =
        std::min(settings_.replay_budget, replay_budget_ + settings_.replay_budget_per_request);
  }
  co_return family.Total();
}

// What there is no memory for fails the request, not the router.
Task<void> RequestFlow::Guarded(Life& life, Task<void> run) {
  try {
    co_await std::move(run);
    co_return;
  } catch (const std::bad_alloc&) {
    LOG_EVERY_SECONDS(ERROR, 5) << "no memory for a request in " << life.phase;
  }
  life.family.Fail(OutOfMemoryError());
  life.family.HandedOver(life);
}

// Attempts until the choice has ended, well or in an error.
Task<void> RequestFlow::RunToEnd(Life& life, std::optional<ApiError> error) {
  while (!life.ended && !error.has_value()) {
    const TimePoint queued_at = RealClock()->Now();
    life.phase = "queue";
    error = co_await PlaceAndReserve(life);
    life.outcome.timings.queue_seconds += SecondsSince(queued_at);
    if (error.has_value()) break;
    const absl::Status status = co_await RunAttempt(life);
    error = co_await NextAttempt(life, status);
  }
  if (error.has_value()) {
    life.family.Fail(*std::move(error));
    co_return;
  }
  life.outcome.usage.prompt_tokens = static_cast<int64_t>(life.request.prompt.size());
  life.outcome.usage.completion_tokens = static_cast<int64_t>(life.delivered.size());
  life.outcome.attempts = life.attempt;
  if (!life.family.error.has_value()) co_await life.sink.End(life.outcome);
}

// An error, or nothing and another attempt, unless the last one ended the choice.
Task<std::optional<ApiError>> RequestFlow::NextAttempt(Life& life, absl::Status status) {
  if (status.ok()) co_return std::nullopt;
  co_await NoteLostAttempt(life, status);
  if (!MayReplay(life, status)) co_return FromStatus(status, life.phase);
  if (!life.ticket.has_value()) {
    life.ticket.emplace(
        admission_->EnterRunning(static_cast<int64_t>(life.request.prompt.size())));
  }
  const bool busy = status.code() == absl::StatusCode::kResourceExhausted;
  life.ticket->Return(busy ? Admission::Ticket::Patience::kKept : Admission::Ticket::Patience::kNew);
  co_return std::nullopt;
}

// A worker's death breaks the calls of its requests one by one, and the registry hears of it among
// them: whose fault it was is judged, and the next place chosen, when all of that is known.
Task<void> RequestFlow::NoteLostAttempt(Life& life, absl::Status status) {
  if (status.code() != absl::StatusCode::kUnavailable || life.request.is_probe) co_return;
  ++life.place.prefill->lost_attempts;
  ++life.place.decode->lost_attempts;
  const TimePoint until = RealClock()->Now() + kDeathIsKnown;
  do {
    co_await SleepUntil(loop_, RealClock()->Now() + kDeathPoll);
  } while (IsUp(*life.place.prefill) && IsUp(*life.place.decode) && !life.client.cancelled() &&
           RealClock()->Now() < until);
}

// On return without an error, life.place and the leases are those of the attempt.
Task<std::optional<ApiError>> RequestFlow::PlaceAndReserve(Life& life) {
  const PhaseAges::Stay stay = metrics_->Enter(Phase::kQueue);
  const CancelSource::Registration registration =
      life.client.OnCancel([this](const absl::Status&) { admission_->NotifyChange(); });
  while (true) {
    if (life.ticket.has_value()) {
      std::optional<ApiError> refusal =
          co_await life.ticket->AwaitTurn(life.request.deadline, life.client);
      if (refusal.has_value()) co_return refusal;
    }
    const PlacementNeeds needs{.prompt_tokens = life.tokens_to_prefill(),
                               .total_tokens = life.tokens_to_prefill() + life.tokens_to_come(),
                               .num_choices = 1 + life.num_forks(),
                               .avoid = life.avoid,
                               .pinned_prefill = life.request.pinned_prefill,
                               .pinned_decode = life.request.pinned_decode};
    PlacementOr chosen = Place(needs, registry_->workers(), RealClock()->Now());
    if (const NoPlacement* none = std::get_if<NoPlacement>(&chosen)) {
      const ApiOr<TimePoint> deadline = WaitForPlace(life, *none);
      if (!deadline.ok()) co_return deadline.error();
      co_await life.ticket->AwaitChange(deadline.value());
      continue;
    }
    life.place = std::get<Placement>(std::move(chosen));
    Worker& decode = *life.place.decode;
    const ReserveArgs args{.request_id = life.request.id.ToString(),
                           .attempt = life.attempt,
                           .prompt_tokens = life.tokens_to_prefill(),
                           .max_new_tokens = life.tokens_to_come(),
                           .prefill_instance_id = life.place.prefill->hello.instance_id,
                           .num_forks = life.num_forks()};
    const TimePoint deadline = RealClock()->Now() + settings_.reserve_timeout;
    const absl::StatusOr<GrantedLease> reserved =
        co_await decode.decode->Reserve(args, deadline, decode.gone);
    if (reserved.ok()) {
      decode.load.free_bytes = reserved->free_bytes;
      const auto num_leases = static_cast<int32_t>(1 + reserved->forks.size());
      decode.load.free_sequences = std::max(0, decode.load.free_sequences - num_leases);
      life.lease = reserved->lease;
      life.fork_leases = reserved->forks;
      life.reserved_bytes = reserved->reserved_bytes / num_leases;
      life.replay_deadline = TimePoint::max();
      if (life.ticket.has_value()) life.ticket->Run();
      co_return std::nullopt;
    }
    if (reserved.status().code() == absl::StatusCode::kResourceExhausted) {
      decode.load.free_bytes = 0;  // until its next report
      continue;
    }
    NoteFailure(decode, reserved.status());
    life.Blame(decode);
    life.phase = "reserve";
    co_await NoteLostAttempt(life, reserved.status());
    if (!MayReplay(life, reserved.status())) co_return FromStatus(reserved.status(), life.phase);
  }
}

// Nobody can take the request now: until when to wait for a change, or the error.
ApiOr<TimePoint> RequestFlow::WaitForPlace(const Life& life, const NoPlacement& none) const {
  if (life.request.is_probe) return none.error;
  if (none.kind == NoPlacement::Kind::kTooLarge && !life.is_replay()) return none.error;
  const TimePoint now = RealClock()->Now();
  if (now >= life.request.deadline) {
    return FromStatus(absl::DeadlineExceededError("the request's deadline passed in the queue"),
                      "queue");
  }
  if (none.kind != NoPlacement::Kind::kNoCapacity) {
    // A worker that could hold what is replayed may come back; once it did.
    if (!life.is_replay() || now >= life.replay_deadline) return none.error;
    return std::min(life.replay_deadline, life.request.deadline);
  }
  const TimePoint queue_deadline = life.ticket->queue_deadline();
  if (now < queue_deadline) return std::min(life.request.deadline, queue_deadline);
  ApiError error = none.error;
  error.retry_after = admission_->DrainEstimate();
  return error;
}

Task<absl::Status> RequestFlow::RunAttempt(Life& life) {
  const auto [prefill, decode] = life.place;
  if (!life.request.is_probe) metrics_->Placed(*prefill, *decode, LinkIsUp(*prefill, *decode));
  life.outcome.prefill_worker = prefill->hello.instance_id;
  life.outcome.decode_worker = decode->hello.instance_id;
  // Open from here on: naming the lease keeps it alive. Its destructor releases a lease that is
  // still live, so a failed prefill cannot leak decode memory.
  std::unique_ptr<LeaseTokens> tokens = decode->decode->Subscribe(life.lease);
  std::vector<std::unique_ptr<LeaseTokens>> fork_tokens;
  for (const LeaseId fork : life.fork_leases) fork_tokens.push_back(decode->decode->Subscribe(fork));
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
    if (!stop.cancelled()) NoteFailure(*prefill, run.status());
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
      if (life.client.cancelled()) co_return batch.status();
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

// Decides whether to run the request again, and prepares for it.
bool RequestFlow::MayReplay(Life& life, const absl::Status& status) {
  if (life.request.is_probe) return false;
  const TimePoint now = RealClock()->Now();
  if (life.client.cancelled() || now >= life.request.deadline) return false;
  bool worker_left = false;
  int64_t shares = 1;
  for (const Worker* worker : {life.place.prefill.get(), life.place.decode.get()}) {
    if (!worker->gone.cancelled()) continue;
    worker_left = true;
    shares = std::clamp(worker->lost_attempts, shares, kMostShares);
    life.Blame(*worker);
  }
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument;
  if (refused || (IsFinal(status) && !worker_left)) return false;
  const bool busy = status.code() == absl::StatusCode::kResourceExhausted;
  if (busy && life.ticket.has_value() && now >= life.ticket->queue_deadline()) return false;
  if (!busy) life.attempts_without_progress += 1.0 / static_cast<double>(shares);
  if (life.attempts_without_progress >= settings_.max_attempts_without_progress) return false;
  if (!busy && !TakeReplay(now)) return false;
  life.replay_deadline = now + settings_.replay_wait;
  ++life.attempt;
  metrics_->Replayed(busy ? "busy" : life.phase);
  LOG(INFO) << Field("request_id", life.request.id) << "attempt " << life.attempt - 1
            << " ended in " << life.phase << ": " << status.ToString()
            << "; running it again after " << life.delivered.size() << " tokens";
  return true;
}

// One replay out of the budget; false if it is used up. Workers that die again and again cost each
// stream a replay, so it fills with time, too.
bool RequestFlow::TakeReplay(TimePoint now) {
  const std::chrono::duration<double> passed = now - budget_filled_at_;
  budget_filled_at_ = now;
  replay_budget_ = std::min(settings_.replay_budget,
                            replay_budget_ + settings_.replay_budget_per_second * passed.count());
  if (replay_budget_ < 1) return false;
  replay_budget_ -= 1;
  return true;
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

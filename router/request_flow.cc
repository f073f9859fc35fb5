#include "router/request_flow.h"

#include <algorithm>
#include <memory>
#include <new>

#include <absl/strings/str_cat.h>

#include "base/logging.h"
#include "base/status_macros.h"
#include "router/request_life.h"

namespace lodestone {
namespace {

// When a connection has broken, the registry knows within this whether the worker is gone.
constexpr std::chrono::milliseconds kDeathIsKnown{300};
constexpr std::chrono::milliseconds kDeathPoll{50};
constexpr int64_t kMostShares = 4;  // of the death of a worker

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

}  // namespace

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
    ApiOr<Admission::Ticket> entered =
        admission_->Enter(static_cast<int64_t>(request.prompt.size()));
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
  life.ticket->Return(busy ? Admission::Ticket::Patience::kKept
                           : Admission::Ticket::Patience::kNew);
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
    if (!life.is_replay()) return WaitForWorker(life, none);
    // A worker that could hold what is replayed may come back; once it did.
    if (now >= life.replay_deadline) return none.error;
    return std::min(life.replay_deadline, life.request.deadline);
  }
  const TimePoint queue_deadline = life.ticket->queue_deadline();
  if (now < queue_deadline) return std::min(life.request.deadline, queue_deadline);
  ApiError error = none.error;
  error.retry_after = admission_->DrainEstimate();
  return error;
}

// The same for a new request. A worker that left is, as a rule, being started again; a role that
// never had one is not waited for. The time counts from the last one's leaving, so that requests
// are refused at once, and do not fill the queue, where nobody starts it again.
ApiOr<TimePoint> RequestFlow::WaitForWorker(const Life& life, const NoPlacement& none) const {
  if (!none.missing.has_value()) return none.error;
  const std::optional<TimePoint> left_at = registry_->LeftAt(*none.missing);
  if (!left_at.has_value()) return none.error;
  const TimePoint until = std::min(*left_at + settings_.worker_wait, life.ticket->queue_deadline());
  const TimePoint now = RealClock()->Now();
  if (now < until) return std::min(until, life.request.deadline);
  const auto since = [now](TimePoint start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - start).count();
  };
  ApiError error = none.error;
  absl::StrAppend(&error.message, ": the last one left ", since(*left_at),
                  " ms ago, new requests wait ", settings_.worker_wait.count(),
                  " ms for another; this one waited ", since(life.request.received_at), " ms");
  return error;
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

}  // namespace lodestone

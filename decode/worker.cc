#include "decode/worker.h"

#include <optional>
#include <string>
#include <utility>

#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// How long the loop sleeps when nothing wakes it: deadlines of hand-offs are looked at as often.
constexpr milliseconds kPumpInterval{5};
constexpr milliseconds kIdleInterval{50};
constexpr std::chrono::seconds kPushTimeout{1};

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

DecodeWorker::DecodeWorker(const DecodeWorkerOptions& options)
    : engine_(*options.engine),
      receiver_(*options.receiver),
      clock_(*options.clock),
      board_(*options.board),
      drain_timeout_(options.drain_timeout),
      drain_(options.drain),
      waker_(options.waker),
      step_seconds_(options.metrics->Histogram(MetricId::kStepSeconds)),
      step_tokens_(options.metrics->Histogram(MetricId::kStepTokens)),
      generation_tokens_(options.metrics->Counter(MetricId::kGenerationTokens)),
      refused_capacity_(
          options.metrics->Counter(MetricId::kAdmissionRejections, {{"reason", "no_capacity"}})),
      refused_context_(options.metrics->Counter(MetricId::kAdmissionRejections,
                                                {{"reason", "context_length_exceeded"}})),
      scheduler_(options.engine, options.receiver, options.clock) {}

bool DecodeWorker::Push(Command& command) {
  if (!commands_.PushUntil(std::move(command), clock_.Now() + kPushTimeout)) return false;
  waker_->Wake();
  return true;
}

void DecodeWorker::Reserve(ReserveRequest request, ReserveDone done) {
  if (draining_) return done(absl::UnavailableError("the decode worker is draining"));
  Command command = ReserveCommand{std::move(request), std::move(done)};
  if (!Push(command)) {
    std::get<ReserveCommand>(command).done(
        absl::UnavailableError("the decode worker does not take commands"));
  }
}

void DecodeWorker::Cancel(LeaseId lease, CancelDone done) {
  Command command = CancelCommand{lease, std::move(done)};
  // A worker that is gone holds nothing.
  if (!Push(command)) std::get<CancelCommand>(command).done(0);
}

bool DecodeWorker::OpenStream(StreamId id, std::shared_ptr<TokenStream> stream) {
  Command command = OpenCommand{id, std::move(stream)};
  return Push(command);
}

bool DecodeWorker::NameOnStream(StreamId id, std::vector<LeaseId> named,
                                std::vector<LeaseId> subscribe) {
  Command command = NameCommand{id, std::move(named), std::move(subscribe)};
  return Push(command);
}

void DecodeWorker::CloseStream(StreamId id) {
  Command command = CloseCommand{id};
  Push(command);  // if it is lost, the leases expire
}

absl::Status DecodeWorker::Loop(const std::function<bool()>& end_requested) {
  std::optional<TimePoint> drain_deadline;
  absl::Status status;
  while (status.ok()) {
    const auto time = DrainTime(drain_, end_requested, drain_timeout_);
    if (time && !drain_deadline) {
      draining_ = true;
      drain_deadline = clock_.Now() + *time;
    }
    status = CatchOutOfMemory("for the loop of the worker", [this] { return Turn(); });
    if (drain_deadline && (scheduler_.num_live() == 0 || clock_.Now() > *drain_deadline)) break;
  }
  End(status);
  return status;
}

// Commands that came before the end are answered too: nothing is left without an answer.
void DecodeWorker::End(const absl::Status& status) {
  draining_ = true;
  commands_.Close();
  TakeCommands();
  if (status.ok()) {
    scheduler_.EndAll(absl::UnavailableError("the decode worker is shutting down"));
    Publish(LoopState::kDraining, "shutting down");
  } else {
    LOG(ERROR) << "the worker ends: " << status.ToString();
    // Its requests may run elsewhere.
    scheduler_.EndAll(absl::UnavailableError("the worker ends: " + std::string(status.message())));
    Publish(LoopState::kUnhealthy, status.ToString());
  }
  receiver_.Pump(scheduler_);  // prefill workers hear of what was given up
}

absl::Status DecodeWorker::Turn() {
  AwaitNews();
  TakeCommands();
  receiver_.Pump(scheduler_);
  RETURN_IF_ERROR(receiver_.health());
  const TimePoint start = clock_.Now();
  RETURN_IF_ERROR(scheduler_.Step());
  if (const int64_t tokens = scheduler_.last_step_tokens(); tokens > 0) {
    step_seconds_.Observe(Seconds(clock_.Now() - start));
    step_tokens_.Observe(static_cast<double>(tokens));
    generation_tokens_.Increment(static_cast<double>(tokens));
    ++num_steps_;
  }
  scheduler_.EndExpired();
  scheduler_.SendEvents();
  Publish(draining_ ? LoopState::kDraining : LoopState::kReady, draining_ ? "draining" : "");
  return absl::OkStatus();
}

void DecodeWorker::AwaitNews() {
  if (scheduler_.num_running() > 0 || receiver_.MovesRows()) return;
  waker_->WaitUntil(clock_.Now() + (scheduler_.num_live() > 0 ? kPumpInterval : kIdleInterval));
}

void DecodeWorker::TakeCommands() {
  while (HandleIfAny(commands_.TryPop())) {
  }
}

bool DecodeWorker::HandleIfAny(std::optional<Command> command) {
  if (!command) return false;
  std::visit([this](auto& taken) { Handle(std::move(taken)); }, *command);
  return true;
}

void DecodeWorker::Handle(ReserveCommand command) {
  absl::StatusOr<ReserveReply> reply = draining_
                                           ? absl::UnavailableError("the decode worker is draining")
                                           : CatchOutOfMemory("for a reservation", [&] {
                                               return scheduler_.Reserve(command.request);
                                             });
  CountRefusal(reply.status());
  command.done(std::move(reply));
}
void DecodeWorker::Handle(CancelCommand command) { command.done(scheduler_.Cancel(command.lease)); }
void DecodeWorker::Handle(OpenCommand command) {
  scheduler_.OpenStream(command.id, std::move(command.stream));
}
void DecodeWorker::Handle(NameCommand command) {
  scheduler_.NameOnStream(command.id, command.named, command.subscribe);
}
void DecodeWorker::Handle(CloseCommand command) { scheduler_.CloseStream(command.id); }

void DecodeWorker::CountRefusal(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) refused_capacity_.Increment();
  if (absl::IsInvalidArgument(status)) refused_context_.Increment();
}

void DecodeWorker::Publish(LoopState state, std::string reason) {
  board_.Set({.state = state,
              .reason = std::move(reason),
              .running_requests = scheduler_.num_running(),
              .waiting_transfer = scheduler_.num_receiving(),
              .waiting_prealloc = scheduler_.num_reserved(),
              .live_leases = scheduler_.num_live(),
              .num_steps = num_steps_,
              .linked_instances = receiver_.LinkedInstances(),
              .refused_links = receiver_.RefusedLinks()});
}

}  // namespace lodestone

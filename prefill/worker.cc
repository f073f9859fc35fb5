#include "prefill/worker.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/failpoint.h"
#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// How long the loop sleeps when nothing wakes it: deadlines of hand-offs are looked at as often.
constexpr milliseconds kPumpInterval{5};
constexpr milliseconds kIdleInterval{50};

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Those that do not end with their first token.
std::vector<HandoffFork> ForksToHandOver(const PrefillRequest& request, const StepResult& result) {
  std::vector<HandoffFork> forks;
  for (size_t i = 0; i < result.forks.size(); ++i) {
    const ForkResult& fork = result.forks[i];
    if (fork.finish != FinishReason::kNone) continue;
    forks.push_back({request.forks[i].lease, request.forks[i].seed, fork.token});
  }
  return forks;
}

}  // namespace

PrefillWorker::PrefillWorker(const PrefillWorkerOptions& options)
    : engine_(*options.engine),
      sender_(*options.sender),
      clock_(*options.clock),
      board_(*options.board),
      drain_timeout_(options.drain_timeout),
      drain_(options.drain),
      waker_(options.waker),
      step_seconds_(options.metrics->Histogram(MetricId::kStepSeconds)),
      step_tokens_(options.metrics->Histogram(MetricId::kStepTokens)),
      prompt_tokens_(options.metrics->Counter(MetricId::kPromptTokens)),
      generation_tokens_(options.metrics->Counter(MetricId::kGenerationTokens)),
      scheduler_(options.limits) {}

PrefillTicket PrefillWorker::Run(PrefillRequest request, PrefillDone done) {
  auto job = std::make_unique<PrefillJob>();
  const PrefillTicket ticket = ++last_ticket_;
  job->ticket = ticket;
  job->request = std::move(request);
  job->done = std::move(done);
  job->arrived = clock_.Now();
  if (draining_) {
    Done(*job, absl::UnavailableError("the prefill worker is draining"));
    return ticket;
  }
  Command command = RunCommand{std::move(job)};
  if (!commands_.TryPush(std::move(command))) {
    Done(*std::get<RunCommand>(command).job,
         commands_.closed()
             ? absl::UnavailableError("the prefill worker is shutting down")
             : absl::ResourceExhaustedError("the worker's command queue is full at " +
                                            std::to_string(commands_.capacity())));
  }
  waker_->Wake();
  return ticket;
}

void PrefillWorker::Cancel(PrefillTicket ticket) {
  // Waits for room: a cancel that is dropped would compute a whole prompt for nobody.
  commands_.PushUntil(CancelCommand{ticket}, clock_.Now() + std::chrono::seconds(1));
  waker_->Wake();
}

void PrefillWorker::Done(PrefillJob& job, absl::StatusOr<PrefillReply> reply) {
  if (job.done) std::exchange(job.done, nullptr)(std::move(reply));
}

absl::Status PrefillWorker::Loop(const std::function<bool()>& end_requested) {
  std::optional<TimePoint> drain_deadline;
  absl::Status status;
  while (status.ok()) {
    const auto time = DrainTime(drain_, end_requested, drain_timeout_);
    if (time && !drain_deadline) {
      draining_ = true;
      drain_deadline = clock_.Now() + *time;
    }
    status = CatchOutOfMemory("for the loop of the worker", [this] { return Turn(); });
    if (drain_deadline && (idle() || clock_.Now() > *drain_deadline)) break;
  }
  End(status);
  return status;
}

// Whatever ended the worker, its requests may run elsewhere: UNAVAILABLE.
void PrefillWorker::End(const absl::Status& status) {
  if (status.ok()) {
    FailAll(absl::UnavailableError("the prefill worker is shutting down"));
    Publish(LoopState::kDraining, "shutting down");
  } else {
    LOG(ERROR) << "the worker ends: " << status.ToString();
    FailAll(absl::UnavailableError("the worker ends: " + std::string(status.message())));
    Publish(LoopState::kUnhealthy, status.ToString());
  }
}

// The sender is pumped between admission and step, so that a lease is named before its first step,
// and after the step, so that what the step made is offered before replies leave.
absl::Status PrefillWorker::Turn() {
  AwaitNews();
  TakeCommands();
  Admit();
  TakeOutcomes();
  if (scheduler_.num_running() > 0) PublishServing();  // a prompt of one step is gone after it
  RETURN_IF_ERROR(StepOnce());
  TakeOutcomes();
  RETURN_IF_ERROR(sender_.health());
  PublishServing();
  return absl::OkStatus();
}

void PrefillWorker::AwaitNews() {
  if (scheduler_.num_running() > 0 || sender_.MovesRows()) return;
  waker_->WaitUntil(clock_.Now() + (idle() ? kIdleInterval : kPumpInterval));
}

void PrefillWorker::TakeCommands() {
  while (HandleIfAny(commands_.TryPop())) {
  }
}

bool PrefillWorker::HandleIfAny(std::optional<Command> command) {
  if (!command) return false;
  std::visit([this](auto& taken) { Handle(std::move(taken)); }, *command);
  return true;
}

void PrefillWorker::Handle(RunCommand command) {
  PrefillJob& job = *command.job;
  // The answer is decode's: only the prompt has to fit here.
  absl::Status status =
      engine_.CheckRequest(job.request.tokens, job.request.num_generated, job.request.sampling,
                           std::ssize(job.request.tokens));
  if (status.ok() && job.request.prompt_logprobs && job.request.num_generated > 0) {
    status = absl::InvalidArgumentError(
        "log-probabilities of a prompt are reported before the first token, " +
        std::to_string(job.request.num_generated) + " are generated");
  }
  if (status.ok() && HasLease(job.request.lease)) {
    status = absl::InvalidArgumentError("lease " + job.request.lease.ToString() +
                                        " has a request on this worker already");
  }
  if (status.ok()) status = FAILPOINT("prefill_enqueue");
  if (status.ok()) status = scheduler_.Enqueue(std::move(command.job));
  if (!status.ok()) Done(*command.job, status);
}

void PrefillWorker::Handle(CancelCommand command) {
  std::unique_ptr<PrefillJob> job = scheduler_.Remove(command.ticket);
  if (job == nullptr) job = TakeHeld(command.ticket);
  if (job != nullptr) EndJob(std::move(job), absl::CancelledError("the request was cancelled"));
}

std::unique_ptr<PrefillJob> PrefillWorker::TakeHeld(PrefillTicket ticket) {
  const auto found = std::ranges::find_if(handing_off_, [ticket](const auto& entry) {
    return entry.second->ticket == ticket && entry.second->held_reply.has_value();
  });
  if (found == handing_off_.end()) return nullptr;
  std::unique_ptr<PrefillJob> job = std::move(found->second);
  handing_off_.erase(found);
  return job;
}

void PrefillWorker::Admit() {
  while (std::unique_ptr<PrefillJob> job = scheduler_.TakeNext()) {
    if (!StartJob(std::move(job))) return;
  }
}

// False if the job had to go back to the queue.
bool PrefillWorker::StartJob(std::unique_ptr<PrefillJob> job) {
  const PrefillRequest& request = job->request;
  absl::StatusOr<std::unique_ptr<Sequence>> sequence = engine_.NewSequence(
      request.tokens, request.num_generated, request.sampling, std::ssize(request.tokens));
  const bool memory_comes_free = scheduler_.num_running() > 0 || !handing_off_.empty();
  if (absl::IsResourceExhausted(sequence.status()) && memory_comes_free) {
    scheduler_.PutBack(std::move(job));
    return false;
  }
  if (!sequence.ok()) {
    Done(*job, sequence.status());
    return true;
  }
  job->sequence = *std::move(sequence);
  std::vector<uint64_t> seeds;
  for (const PrefillFork& fork : request.forks) seeds.push_back(fork.seed);
  job->sequence->ForkWith(std::move(seeds));
  if (request.prompt_logprobs) job->sequence->WantPromptLogprobs();
  job->started = clock_.Now();
  sender_.Begin(request.lease, request.decode, request.decode_address, &job->sequence->cache());
  scheduler_.Start(std::move(job));
  return true;
}

absl::Status PrefillWorker::StepOnce() {
  const std::vector<StepPart> parts = scheduler_.NextStep();
  if (parts.empty()) return absl::OkStatus();
  const TimePoint start = clock_.Now();
  ASSIGN_OR_RETURN(std::vector<StepResult> results, engine_.Step(parts));
  int64_t num_tokens = 0;
  for (const StepPart& part : parts) {
    num_tokens += part.num_tokens;
    const PrefillJob& job = *scheduler_.FindRunning(part.sequence);
    sender_.GrowTo(job.request.lease, part.sequence->cache().length());
  }
  step_seconds_.Observe(Seconds(clock_.Now() - start));
  step_tokens_.Observe(static_cast<double>(num_tokens));
  prompt_tokens_.Increment(static_cast<double>(num_tokens));
  ++num_steps_;
  for (StepResult& result : results) Answer(std::move(result));
  return FAILPOINT("prefill_after_step");
}

// The first token to the router, the rest of the cache to decode. Until decode answers for the
// lease, only the reply can tell the router of a failure, so it is held back.
void PrefillWorker::Answer(StepResult result) {
  generation_tokens_.Increment();
  std::unique_ptr<PrefillJob> job =
      scheduler_.Remove(scheduler_.FindRunning(result.sequence)->ticket);
  const PrefillRequest& request = job->request;
  PrefillReply reply{.first_token = result.token,
                     .finish = result.finish,
                     .forks = result.forks,
                     .queue_seconds = Seconds(job->started - job->arrived),
                     .prefill_seconds = Seconds(clock_.Now() - job->started),
                     .handoff_bytes = sender_.BytesOffered(request.lease)};
  if (request.prompt_logprobs) reply.prompt_logprobs = std::move(job->sequence->prompt_logprobs());
  std::vector<HandoffFork> forks = ForksToHandOver(request, result);
  if (result.finish != FinishReason::kNone && forks.empty()) {
    // The reply first: decode gives the lease up when it is forgotten, and a router that hears of
    // that before the reply would take it for a failure.
    Done(*job, std::move(reply));
    return sender_.Forget(request.lease, "the request ended with its first token");
  }
  job->held_reply = std::move(reply);
  sender_.Finish(request.lease, Handoff{.lease = request.lease,
                                        .request_id = request.request_id,
                                        .tokens = request.tokens,
                                        .num_generated = request.num_generated,
                                        .first_token = std::move(result.token),
                                        .sampling = request.sampling,
                                        .forks = std::move(forks)});
  handing_off_.emplace(request.lease, std::move(job));
}

void PrefillWorker::SendHeldReplies() {
  for (auto& [lease, job] : handing_off_) {
    if (!job->held_reply || !sender_.IsBound(lease)) continue;
    Done(*job, *std::exchange(job->held_reply, std::nullopt));
  }
}

void PrefillWorker::TakeOutcomes() {
  for (const HandoffOutcome& outcome : sender_.Pump()) TakeOutcome(outcome);
  SendHeldReplies();
}

void PrefillWorker::TakeOutcome(const HandoffOutcome& outcome) {
  if (const auto found = handing_off_.find(outcome.lease); found != handing_off_.end()) {
    PrefillJob& job = *found->second;
    if (outcome.status.ok()) {
      if (job.held_reply) Done(job, *std::move(job.held_reply));
    } else {
      // A router that has the reply hears of it from decode, which gives the lease up.
      LOG(WARNING) << Field("request_id", job.request.request_id)
                   << "hand-off failed: " << outcome.status.ToString();
      Done(job, outcome.status);
    }
    handing_off_.erase(found);
  } else if (std::unique_ptr<PrefillJob> running = scheduler_.RemoveLease(outcome.lease)) {
    LOG(WARNING) << Field("request_id", running->request.request_id)
                 << "hand-off failed while computing: " << outcome.status.ToString();
    Done(*running, outcome.status);
  }
}

// The sender must let go of the pages before the sequence does.
void PrefillWorker::EndJob(std::unique_ptr<PrefillJob> job, const absl::Status& status) {
  if (job->sequence != nullptr) sender_.Forget(job->request.lease, std::string(status.message()));
  Done(*job, status);
}

bool PrefillWorker::HasLease(LeaseId lease) const {
  return handing_off_.contains(lease) || scheduler_.HasLease(lease);
}

bool PrefillWorker::idle() const {
  return scheduler_.num_running() == 0 && scheduler_.num_queued() == 0 && handing_off_.empty();
}

// Commands that came before the end are answered too: nothing is left without an answer.
void PrefillWorker::FailAll(const absl::Status& status) {
  draining_ = true;
  commands_.Close();
  TakeCommands();
  while (std::unique_ptr<PrefillJob> job = scheduler_.RemoveAny()) EndJob(std::move(job), status);
  while (!handing_off_.empty()) {
    EndJob(std::move(handing_off_.extract(handing_off_.begin()).mapped()), status);
  }
  sender_.Pump();
}

void PrefillWorker::PublishServing() {
  Publish(draining_ ? LoopState::kDraining : LoopState::kReady, draining_ ? "draining" : "");
}

void PrefillWorker::Publish(LoopState state, std::string reason) {
  board_.Set({.state = state,
              .reason = std::move(reason),
              .queued_tokens = scheduler_.queued_tokens(),
              .queued_requests = scheduler_.num_queued(),
              .running_requests = scheduler_.num_running(),
              .inflight_handoffs = std::ssize(handing_off_),
              .num_steps = num_steps_,
              .links = sender_.Links()});
}

}  // namespace lodestone

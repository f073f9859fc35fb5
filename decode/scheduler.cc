#include "decode/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/failpoint.h"
#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "engine/sampler.h"
#include "kvcache/ledger.h"
#include "worker/registration_messages.h"

namespace lodestone {
namespace {

LeaseEvent ErrorEvent(LeaseId lease, absl::Status error) {
  return {.lease = lease, .finish = FinishReason::kError, .error = std::move(error)};
}

}  // namespace

DecodeScheduler::DecodeScheduler(Engine* engine, Receiver* receiver, const Clock* clock)
    : engine_(*engine), receiver_(*receiver), leases_(clock) {}

absl::Status DecodeScheduler::CheckReserve(const ReserveRequest& request) const {
  if (request.prompt_tokens < 1 || request.max_new_tokens < 1) {
    return absl::InvalidArgumentError(
        "a reservation needs at least 1 prompt token and 1 new token, got " +
        std::to_string(request.prompt_tokens) + " and " + std::to_string(request.max_new_tokens));
  }
  const MemoryPlan& plan = engine_.plan();
  const int64_t total = request.prompt_tokens + request.max_new_tokens;
  if (total > plan.max_context) {
    return absl::InvalidArgumentError("prompt and answer may have " + std::to_string(total) +
                                      " tokens, the context is " +
                                      std::to_string(plan.max_context));
  }
  if (request.num_forks < 0 || request.num_forks >= plan.num_slots) {
    return absl::InvalidArgumentError("a request has " + std::to_string(request.num_forks) +
                                      " further choices, the worker holds " +
                                      std::to_string(plan.num_slots) + " sequences");
  }
  const int64_t num_pages = (request.num_forks + 1) * ReservationFor(total).num_pages;
  if (request.num_forks > 0 && num_pages > plan.num_pages) {
    return absl::InvalidArgumentError("the choices of a request need " +
                                      std::to_string(num_pages) + " pages, the worker has " +
                                      std::to_string(plan.num_pages));
  }
  return absl::OkStatus();
}

absl::Status DecodeScheduler::ReserveOne(LeaseId lease, const ReserveRequest& request) {
  // The ledger last: what there is no memory for has reserved nothing.
  std::map<LeaseId, Request> added;
  added.emplace(lease, Request{.lease = lease,
                               .request_id = request.request_id,
                               .prompt_tokens = request.prompt_tokens,
                               .max_new_tokens = request.max_new_tokens,
                               .cache = nullptr,
                               .sequence = nullptr,
                               .stream = std::nullopt,
                               .unsent = {},
                               .forks = {}});
  leases_.Add(lease);
  const absl::Status reserved = engine_.cache().ledger().Reserve(
      lease, ReservationFor(request.prompt_tokens + request.max_new_tokens));
  if (!reserved.ok()) {
    leases_.Remove(lease);
    return reserved;
  }
  requests_.merge(added);
  return absl::OkStatus();
}

absl::Status DecodeScheduler::ReserveForks(const ReserveRequest& request, ReserveReply& reply) {
  std::vector<LeaseId>& forks = requests_.at(reply.lease).forks;
  forks.reserve(static_cast<size_t>(request.num_forks));
  reply.forks.reserve(static_cast<size_t>(request.num_forks));
  for (int64_t i = 0; i < request.num_forks; ++i) {
    const LeaseId fork = RandomLeaseId();
    RETURN_IF_ERROR(ReserveOne(fork, request));
    forks.push_back(fork);
    reply.forks.push_back(fork);
  }
  return absl::OkStatus();
}

absl::StatusOr<ReserveReply> DecodeScheduler::Reserve(const ReserveRequest& request) {
  RETURN_IF_ERROR(CheckReserve(request));
  RETURN_IF_ERROR(FAILPOINT("decode_reserve"));
  Ledger& ledger = engine_.cache().ledger();
  const int64_t free_before = ledger.Snapshot().free_bytes;
  ReserveReply reply{.lease = RandomLeaseId()};
  RETURN_IF_ERROR(ReserveOne(reply.lease, request));
  const absl::Status forks = CatchOutOfMemory(
      "for the choices of a request", [&] { return ReserveForks(request, reply); });
  if (!forks.ok()) {
    Cancel(reply.lease);
    return forks;
  }
  const MemorySnapshot memory = ledger.Snapshot();
  reply.reserved_bytes = free_before - memory.free_bytes;
  reply.free_bytes = ReservableBytes(memory, engine_.plan());
  return reply;
}

int64_t DecodeScheduler::Cancel(LeaseId lease) {
  const int64_t free_before = engine_.cache().ledger().Snapshot().free_bytes;
  End(lease, {.lease = lease, .finish = FinishReason::kCancelled}, "cancelled by the router");
  return engine_.cache().ledger().Snapshot().free_bytes - free_before;
}

void DecodeScheduler::OpenStream(StreamId id, std::shared_ptr<TokenStream> stream) {
  streams_.emplace(id, Stream{std::move(stream), {}});
}

void DecodeScheduler::NameOnStream(StreamId id, std::span<const LeaseId> named,
                                   std::span<const LeaseId> subscribe) {
  if (!streams_.contains(id)) return;
  leases_.NameOnStream(id, named);
  leases_.NameOnStream(id, subscribe);
  for (LeaseId lease : subscribe) Subscribe(id, lease);
}

void DecodeScheduler::Subscribe(StreamId id, LeaseId lease) {
  const auto request = requests_.find(lease);
  if (request == requests_.end()) {
    streams_.at(id).events.push_back(
        ErrorEvent(lease, absl::NotFoundError("lease " + lease.ToString() + " is not live")));
    return;
  }
  request->second.stream = id;
  for (LeaseEvent& event : std::exchange(request->second.unsent, {})) {
    streams_.at(id).events.push_back(std::move(event));
  }
}

void DecodeScheduler::CloseStream(StreamId id) {
  streams_.erase(id);
  for (LeaseId lease : leases_.TakeBroken(id)) {
    End(lease, ErrorEvent(lease, absl::UnavailableError("the router's stream broke")),
        "the router's stream broke");
  }
}

absl::Status DecodeScheduler::Step() {
  last_step_tokens_ = 0;
  if (running_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(FAILPOINT("decode_step"));
  std::vector<StepPart> parts;
  for (LeaseId lease : running_) parts.push_back({requests_.at(lease).sequence.get(), 1});
  ASSIGN_OR_RETURN(const std::vector<StepResult> results, engine_.Step(parts));
  last_step_tokens_ = std::ssize(results);
  // Results come in the order of parts; TakeResult may end a request and shrink running_.
  for (const StepResult& result : results) TakeResult(result);
  return absl::OkStatus();
}

void DecodeScheduler::TakeResult(const StepResult& result) {
  const LeaseId lease = result.sequence->cache().lease();
  LeaseEvent event{.lease = lease, .finish = result.finish};
  // A stop token says only that the answer is over.
  if (result.finish != FinishReason::kStop) event.tokens.push_back(result.token);
  if (result.finish == FinishReason::kNone) {
    Emit(requests_.at(lease), std::move(event));
  } else {
    End(lease, std::move(event), "finished");
  }
}

void DecodeScheduler::EndExpired() {
  for (LeaseId lease : std::exchange(ended_at_adoption_, {})) {
    End(lease, {.lease = lease, .finish = FinishReason::kStop}, "ended with its first token");
  }
  for (LeaseId lease : leases_.TakeExpired()) {
    End(lease, ErrorEvent(lease, absl::UnavailableError("the lease was not named for 5 s")),
        "the lease expired");
  }
}

void DecodeScheduler::Emit(Request& request, LeaseEvent event) {
  const auto stream = request.stream ? streams_.find(*request.stream) : streams_.end();
  if (stream != streams_.end()) {
    stream->second.events.push_back(std::move(event));
  } else {
    request.unsent.push_back(std::move(event));
  }
}

void DecodeScheduler::End(LeaseId lease, LeaseEvent terminal, std::string_view reason) {
  const auto found = requests_.find(lease);
  if (found == requests_.end()) return;
  VLOG(1) << "request " << found->second.request_id << " ends: " << std::string(reason);
  const std::vector<LeaseId> forks = std::move(found->second.forks);
  LeaseEvent with_forks{.lease = lease, .finish = terminal.finish, .error = terminal.error};
  Emit(found->second, std::move(terminal));
  leases_.Remove(lease);
  std::erase(running_, lease);
  receiver_.Release(lease, reason);
  // The cache first: what a released lease still uses would count as orphaned.
  requests_.erase(found);
  const absl::Status released = engine_.cache().ledger().Release(lease);
  CHECK(released.ok()) << released.ToString();
  for (LeaseId fork : forks) {
    with_forks.lease = fork;
    End(fork, with_forks, reason);
  }
}

void DecodeScheduler::SendEvents() {
  for (auto& [id, stream] : streams_) {
    if (!stream.events.empty()) stream.stream->Add(std::exchange(stream.events, {}));
  }
}

void DecodeScheduler::EndAll(const absl::Status& status) {
  while (!requests_.empty()) {
    const LeaseId lease = requests_.begin()->first;
    End(lease, ErrorEvent(lease, status), std::string(status.message()));
  }
  SendEvents();
  for (auto& [id, stream] : streams_) stream.stream->End(status);
  streams_.clear();
}

absl::StatusOr<SequenceCache*> DecodeScheduler::CacheFor(LeaseId lease, int64_t num_tokens) {
  const auto found = requests_.find(lease);
  if (found == requests_.end() || found->second.sequence != nullptr) {
    return absl::NotFoundError("lease " + lease.ToString() + " takes no rows");
  }
  Request& request = found->second;
  if (num_tokens < 0 || num_tokens > request.prompt_tokens) {
    return absl::InvalidArgumentError("rows of " + std::to_string(num_tokens) + " tokens arrive, " +
                                      std::to_string(request.prompt_tokens) + " were reserved");
  }
  if (request.cache == nullptr) {
    ASSIGN_OR_RETURN(request.cache, engine_.cache().MakeSequence(lease));
  }
  RETURN_IF_ERROR(request.cache->Reserve(num_tokens));
  return request.cache.get();
}

absl::Status DecodeScheduler::Adopt(Handoff handoff) {
  const auto found = requests_.find(handoff.lease);
  if (found == requests_.end()) return absl::NotFoundError("the lease is not live");
  Request& request = found->second;
  RETURN_IF_ERROR(FAILPOINT("decode_adopt"));
  RETURN_IF_ERROR(engine_.CheckRequest(handoff.tokens, handoff.num_generated, handoff.sampling));
  const int64_t num_tokens = std::ssize(handoff.tokens);
  const int64_t to_come = handoff.sampling.max_new_tokens - handoff.num_generated;
  if (num_tokens != request.prompt_tokens || to_come > request.max_new_tokens ||
      request.cache == nullptr) {
    return absl::InvalidArgumentError(std::to_string(num_tokens) + " tokens and " +
                                      std::to_string(to_come) + " to come are handed over, " +
                                      std::to_string(request.prompt_tokens) + " and " +
                                      std::to_string(request.max_new_tokens) + " were reserved");
  }
  if (handoff.forks.empty()) {
    RETURN_IF_ERROR(CheckFirstToken(handoff.first_token, handoff));
  } else {
    RETURN_IF_ERROR(CheckInVocabulary(handoff.first_token));
  }
  RETURN_IF_ERROR(CheckForks(request, handoff));
  if (request.cache->length() < num_tokens) request.cache->SetLength(num_tokens);
  for (const HandoffFork& fork : handoff.forks) {
    RETURN_IF_ERROR(StartFork(fork, handoff, *request.cache));
  }
  // From here on each of them is on its own.
  for (LeaseId fork : std::exchange(request.forks, {})) {
    if (!std::ranges::count(running_, fork)) ended_at_adoption_.push_back(fork);
  }
  if (LeavesWork(handoff.first_token, handoff)) {
    Run(request, handoff, handoff.sampling, handoff.first_token);
  } else {
    ended_at_adoption_.push_back(request.lease);
  }
  return absl::OkStatus();
}

absl::Status DecodeScheduler::CheckInVocabulary(const GeneratedToken& token) const {
  const int64_t vocab_size = engine_.config().vocab_size;
  if (token.id >= 0 && token.id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError("first token " + std::to_string(token.id) +
                                    " is not in the vocabulary of " + std::to_string(vocab_size));
}

bool DecodeScheduler::LeavesWork(const GeneratedToken& token, const Handoff& handoff) const {
  return FinishAfter(token.id, handoff.num_generated + 1, handoff.sampling,
                     engine_.config().eos_ids) == FinishReason::kNone;
}

absl::Status DecodeScheduler::CheckFirstToken(const GeneratedToken& token,
                                              const Handoff& handoff) const {
  RETURN_IF_ERROR(CheckInVocabulary(token));
  if (LeavesWork(token, handoff)) return absl::OkStatus();
  return absl::InvalidArgumentError("first token " + std::to_string(token.id) +
                                    " leaves nothing to decode");
}

absl::Status DecodeScheduler::CheckForks(const Request& request, const Handoff& handoff) const {
  std::set<LeaseId> seen;
  for (const HandoffFork& fork : handoff.forks) {
    if (!std::ranges::count(request.forks, fork.lease) || !seen.insert(fork.lease).second) {
      return absl::InvalidArgumentError("lease " + fork.lease.ToString() +
                                        " is not one of the further choices of lease " +
                                        request.lease.ToString());
    }
    RETURN_IF_ERROR(CheckFirstToken(fork.first_token, handoff));
  }
  return absl::OkStatus();
}

// A fork that was cancelled meanwhile is left out.
absl::Status DecodeScheduler::StartFork(const HandoffFork& fork, const Handoff& handoff,
                                        const SequenceCache& cache) {
  const auto found = requests_.find(fork.lease);
  if (found == requests_.end()) return absl::OkStatus();
  Request& request = found->second;
  ASSIGN_OR_RETURN(request.cache, engine_.cache().MakeSequence(fork.lease));
  RETURN_IF_ERROR(request.cache->Reserve(cache.length()));
  request.cache->CopyFrom(cache);
  SamplingParams sampling = handoff.sampling;
  sampling.seed = fork.seed;
  Run(request, handoff, sampling, fork.first_token);
  return absl::OkStatus();
}

void DecodeScheduler::Run(Request& request, const Handoff& handoff, const SamplingParams& sampling,
                          const GeneratedToken& first) {
  request.sequence = std::make_unique<Sequence>(std::move(request.cache), handoff.tokens,
                                                handoff.num_generated, sampling);
  request.sequence->AppendGenerated(first.id);
  running_.push_back(request.lease);
}

void DecodeScheduler::Abandon(LeaseId lease, const absl::Status& why) {
  End(lease, ErrorEvent(lease, why), std::string(why.message()));
}

bool DecodeScheduler::Expects(LeaseId lease) const {
  const auto found = requests_.find(lease);
  return found != requests_.end() && found->second.sequence == nullptr;
}

void DecodeScheduler::Named(std::span<const LeaseId> leases) {
  leases_.Name(leases);
}

int64_t DecodeScheduler::num_reserved() const {
  return std::ranges::count_if(requests_, [](const auto& entry) {
    return entry.second.cache == nullptr && entry.second.sequence == nullptr;
  });
}

int64_t DecodeScheduler::num_receiving() const {
  return std::ranges::count_if(requests_,
                               [](const auto& entry) { return entry.second.cache != nullptr; });
}

}  // namespace lodestone

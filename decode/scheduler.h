#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "decode/leases.h"
#include "decode/token_stream.h"
#include "engine/engine.h"
#include "kvtransfer/receiver.h"

namespace lodestone {

// What a router reserves memory for.
struct ReserveRequest {
  std::string request_id = {};  // of the router, for logs
  int32_t attempt = 0;
  int64_t prompt_tokens = 0;   // that prefill will hand over
  int64_t max_new_tokens = 0;  // still to come, the one that prefill samples included
  int64_t num_forks = 0;       // further choices of the same size
};

struct ReserveReply {
  LeaseId lease;
  std::vector<LeaseId> forks = {};
  int64_t reserved_bytes = 0;  // all leases
  int64_t free_bytes = 0;  // of the largest reservation that still fits
};

// The requests of a decode worker, from reservation to their terminal event. Owns their caches and
// sequences; every byte goes back to the ledger when a request ends, whichever way it does. Worker
// loop only.
//
// States of a request: reserved -> receiving (has a cache) -> running (adopted) -> ended. It can
// end in every state: finished, cancelled, abandoned by its hand-off, expired, or its stream
// broken. Exactly one terminal event is made for each, and nothing after it.
//
// Forks are further choices of a request: each has a lease of its own, waits in state reserved for
// the hand-off of the request, begins as a copy of its cache, and is a request like any other from
// then on. Until then it ends when that request does.
class DecodeScheduler : public HandoffTarget {
 public:
  DecodeScheduler(Engine* engine, Receiver* receiver, const Clock* clock);

  // INVALID_ARGUMENT: can never fit; RESOURCE_EXHAUSTED: does not fit now. Both numbers are told.
  // A request and its forks are reserved together or not at all.
  absl::StatusOr<ReserveReply> Reserve(const ReserveRequest& request);
  // Idempotent; the bytes given back.
  int64_t Cancel(LeaseId lease);

  // A router's stream names leases, and takes the events of `subscribe` from now on, those that
  // are waiting included. A lease that is not live any more gets a NOT_FOUND event.
  void OpenStream(StreamId id, std::shared_ptr<TokenStream> stream);
  void NameOnStream(StreamId id, std::span<const LeaseId> named,
                    std::span<const LeaseId> subscribe);
  void CloseStream(StreamId id);  // its leases die

  // One decode step of every running request: at most one pass of the engine.
  absl::Status Step();
  // Ends expired leases, and those that a hand-off brought nothing to do for.
  void EndExpired();
  // Sends the events made since last time.
  void SendEvents();
  // Ends every request with `status`, and then every stream.
  void EndAll(const absl::Status& status);

  // HandoffTarget.
  absl::StatusOr<SequenceCache*> CacheFor(LeaseId lease, int64_t num_tokens) override;
  absl::Status Adopt(Handoff handoff) override;
  void Abandon(LeaseId lease, const absl::Status& why) override;
  bool Expects(LeaseId lease) const override;
  void Named(std::span<const LeaseId> leases) override;

  int64_t num_running() const { return std::ssize(running_); }
  int64_t num_reserved() const;   // no row yet
  int64_t num_receiving() const;  // rows arriving
  int64_t num_live() const { return std::ssize(requests_); }
  int64_t last_step_tokens() const { return last_step_tokens_; }

 private:
  struct Request {
    LeaseId lease;
    std::string request_id;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    std::unique_ptr<SequenceCache> cache;  // until adopted
    std::unique_ptr<Sequence> sequence;    // from then on
    std::optional<StreamId> stream;
    std::vector<LeaseEvent> unsent;  // until it has a stream
    std::vector<LeaseId> forks;      // that wait for the hand-off of this one
  };
  struct Stream {
    std::shared_ptr<TokenStream> stream;
    std::vector<LeaseEvent> events;  // of this turn of the loop
  };

  absl::Status CheckReserve(const ReserveRequest& request) const;
  absl::Status ReserveOne(LeaseId lease, const ReserveRequest& request);
  // All of them, or an error with some: those end with their request.
  absl::Status ReserveForks(const ReserveRequest& request, ReserveReply& reply);
  absl::Status CheckInVocabulary(const GeneratedToken& token) const;
  // Whether a sequence that begins with this first token goes on.
  bool LeavesWork(const GeneratedToken& token, const Handoff& handoff) const;
  absl::Status CheckFirstToken(const GeneratedToken& token, const Handoff& handoff) const;
  absl::Status CheckForks(const Request& request, const Handoff& handoff) const;
  absl::Status StartFork(const HandoffFork& fork, const Handoff& handoff,
                         const SequenceCache& cache);
  void Run(Request& request, const Handoff& handoff, const SamplingParams& sampling,
           const GeneratedToken& first);
  void Emit(Request& request, LeaseEvent event);
  void End(LeaseId lease, LeaseEvent terminal, std::string_view reason);
  void TakeResult(const StepResult& result);
  void Subscribe(StreamId id, LeaseId lease);

  Engine& engine_;
  Receiver& receiver_;
  LeaseTable leases_;
  std::map<LeaseId, Request> requests_;
  std::map<StreamId, Stream> streams_;
  std::vector<LeaseId> running_;  // in order of adoption
  std::vector<LeaseId> ended_at_adoption_;  // with their first token: to be told so
  int64_t last_step_tokens_ = 0;
};

}  // namespace lodestone

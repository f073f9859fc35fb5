// The thin layer over gRPC: calls to workers as coroutines. All of it belongs to the loop; gRPC's
// threads only post into it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "base/ids.h"
#include "base/sampling_params.h"
#include "router/async.h"

namespace lodestone {

struct ReserveArgs {
  std::string request_id;
  int attempt = 1;
  int64_t prompt_tokens = 0;   // that prefill will hand over
  int64_t max_new_tokens = 0;  // still to come
  std::string prefill_instance_id;
  int64_t num_forks = 0;  // further choices
};

struct GrantedLease {
  LeaseId lease;
  std::vector<LeaseId> forks;
  int64_t reserved_bytes = 0;  // of all leases
  int64_t free_bytes = 0;  // of the worker, after it
};

struct RunArgs {
  std::string request_id;
  int attempt = 1;
  LeaseId lease;
  std::string decode_instance_id;
  std::string decode_address;
  std::vector<TokenId> tokens;  // prompt, then the generated tokens delivered so far
  int64_t num_generated = 0;
  SamplingParams sampling;
  struct Fork {
    LeaseId lease;
    uint64_t seed = 0;
  };
  std::vector<Fork> forks{};  // further choices
  bool prompt_logprobs = false;
};

struct RunResult {
  struct Start {  // of a choice
    GeneratedToken first_token;
    FinishReason finish_reason = FinishReason::kNone;  // set: it ends with this token
  };
  std::vector<Start> choices;  // as many as asked for; if all end, no hand-off follows
  PromptLogprobs prompt_logprobs;
  int64_t cached_tokens = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  int64_t handoff_bytes = 0;
};

// Calls to one prefill worker.
class PrefillClient {
 public:
  static std::shared_ptr<PrefillClient> Connect(asio::io_context& loop, const std::string& address);
  virtual ~PrefillClient() = default;
  // The worker's status, or the reason of `cancel` as soon as that is cancelled; the worker is then
  // told to stop.
  virtual Task<absl::StatusOr<RunResult>> Run(const RunArgs& args, TimePoint deadline,
                                              CancelSource& cancel) = 0;
};

// The tokens of one lease. While it lives, the lease is named to the worker every second; its
// destructor gives the lease back unless it has ended already.
class LeaseTokens {
 public:
  struct Batch {
    std::vector<GeneratedToken> tokens;
    FinishReason finish_reason = FinishReason::kNone;  // set on the last batch
  };
  virtual ~LeaseTokens() = default;
  // The next tokens; the status of the worker if the lease ended in an error; the reason of
  // `cancel` once that is cancelled; DEADLINE_EXCEEDED.
  virtual Task<absl::StatusOr<Batch>> Next(TimePoint deadline, CancelSource& cancel) = 0;
  // Cancelled when the lease ends in an error, even while nobody waits in Next.
  virtual CancelSource& failure() = 0;
  // Whether that was the end of the stream of all leases: the worker died or cannot be reached.
  virtual bool stream_ended() const = 0;
};

// Calls to one decode worker, and the one stream that carries all leases of this router.
class DecodeClient {
 public:
  static std::shared_ptr<DecodeClient> Connect(asio::io_context& loop, const std::string& address);
  virtual ~DecodeClient() = default;
  // Cancelling it leaves a lease that nobody holds (it dies by itself after 5 s): wait if you can.
  virtual Task<absl::StatusOr<GrantedLease>> Reserve(const ReserveArgs& args, TimePoint deadline,
                                                     CancelSource& cancel) = 0;
  // Opens the stream if it is not open.
  virtual std::unique_ptr<LeaseTokens> Subscribe(LeaseId lease) = 0;
  // Every lease fails with `status`; no new ones. For a worker that has left.
  virtual void Shutdown(absl::Status status) = 0;
  virtual int64_t num_leases() const = 0;
};

}  // namespace lodestone

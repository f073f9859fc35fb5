#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/sampling_params.h"
#include "engine/engine.h"

namespace lodestone {

// A further choice of a request: it begins with a token of its own and the same cache.
struct PrefillFork {
  LeaseId lease;
  uint64_t seed = 0;
};

// What the router asks for (RunRequest of proto/lodestone/v1/worker.proto).
struct PrefillRequest {
  std::string request_id;  // of the router, for logs
  int32_t attempt = 0;
  LeaseId lease;
  InstanceId decode;
  std::string decode_address;  // host:port
  std::vector<int32_t> tokens;
  int32_t num_generated = 0;  // of `tokens`, at its end
  SamplingParams sampling;
  std::vector<PrefillFork> forks = {};
  bool prompt_logprobs = false;
};

struct PrefillReply {
  GeneratedToken first_token;
  FinishReason finish = FinishReason::kNone;
  std::vector<ForkResult> forks = {};
  PromptLogprobs prompt_logprobs = {};  // if asked for
  double queue_seconds = 0;
  double prefill_seconds = 0;
  int64_t handoff_bytes = 0;  // offered so far
};

// Called once, on the loop thread or, for a request that never got there, on the caller's.
using PrefillDone = std::function<void(absl::StatusOr<PrefillReply>)>;

// Names a request inside this worker, for cancelling it.
using PrefillTicket = uint64_t;

// A request on this worker. States: queued (no sequence) -> running (pending tokens) -> handing off
// (waiting for the outcome; replied once decode answers for the lease) -> gone.
struct PrefillJob {
  PrefillTicket ticket = 0;
  PrefillRequest request;
  PrefillDone done;  // empty once called
  TimePoint arrived;
  TimePoint started;
  std::unique_ptr<Sequence> sequence;
  std::optional<PrefillReply> held_reply;  // computed, decode does not answer for it yet
};

}  // namespace lodestone

// Prefill and decode workers without a model: the tokens they make, and when they fail, are written
// down by the test. They speak the real gRPC services and register with a real router.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lodestone {

// What all workers of a test agree on.
struct ScriptedModel {
  // Token i of every answer is output[i]; after the last one the answer ends as at a stop token.
  std::vector<int32_t> output;
  // The same for the further choices of a request: the i-th of them answers with fork_outputs[i],
  // those beyond with `output`.
  std::vector<std::vector<int32_t>> fork_outputs;
  std::string model_name = "needle-tiny";
  std::string model_id = "scripted";
  std::string tokenizer;  // field of the layout; empty: left out
  int32_t vocab_size = 1024;
  int32_t eos_token_id = 1;
  int32_t max_context_tokens = 1 << 20;
  int64_t cache_capacity_bytes = int64_t{1} << 40;
  int64_t bytes_per_sequence = 1000;
  int64_t bytes_per_page = 256;
  int32_t page_tokens = 256;
  std::string index_k = "bf16";
};

class ScriptedDecode {
 public:
  // Listens on a free port and registers with the router at `router_address`.
  static std::unique_ptr<ScriptedDecode> Start(const ScriptedModel& model,
                                               const std::string& router_address);
  virtual ~ScriptedDecode() = default;

  virtual const std::string& instance_id() const = 0;
  virtual std::string address() const = 0;
  // Every connection breaks at once, as at a kill -9.
  virtual void Kill() = 0;
  // No heartbeat any more, though everything else works.
  virtual void FallSilent() = 0;
  // Kills itself instead of sending its n-th token, counted over all leases; 0: never.
  virtual void DieAtToken(int64_t n) = 0;
  // The pause before each token.
  virtual void SetTokenPause(std::chrono::milliseconds pause) = 0;
  // Tokens of a lease in one event.
  virtual void SetTokensPerStep(int count) = 0;
  // The next `count` answers end with this status code (grpc) instead of their third token.
  virtual void FailStreams(int count, int code) = 0;
  // The same instead of their first token, as when the prefill worker abandons the hand-off.
  virtual void FailHandOffs(int count, int code) = 0;
  // Sends every token twice.
  virtual void RepeatTokens(bool repeat) = 0;
  // Leaves out the token with this index; -1: none.
  virtual void SkipToken(int index) = 0;
  virtual void SetState(int state, const std::string& reason) = 0;  // v1::WorkerState

  virtual int64_t num_reserved() const = 0;   // calls of Reserve that succeeded
  virtual int64_t num_cancelled() const = 0;  // leases ended by Cancel
  virtual int64_t num_live() const = 0;       // leases now
  virtual int64_t num_tokens_sent() const = 0;
  // Why the router ended the registration; empty while it stands.
  virtual std::string refusal() const = 0;
  // Waits until no lease is live; false after 5 s.
  virtual bool WaitIdle() const = 0;

  // From a scripted prefill worker: the hand-off of a choice whose next token is output[next].
  struct Adoption {
    std::vector<int32_t> output;
    int32_t next = 0;
    int32_t max_new_tokens = 0;
    bool ignore_eos = false;
    bool logprobs = false;
  };
  virtual void Adopt(uint64_t lease, const Adoption& adoption) = 0;
};

class ScriptedPrefill {
 public:
  static std::unique_ptr<ScriptedPrefill> Start(const ScriptedModel& model,
                                                const std::string& router_address);
  virtual ~ScriptedPrefill() = default;

  // To be known before requests come; not owned.
  virtual void AddDecode(ScriptedDecode* decode) = 0;
  virtual const std::string& instance_id() const = 0;
  virtual void Kill() = 0;
  // Kills itself in the n-th Run from now; 0: never.
  virtual void DieAtRun(int64_t n) = 0;
  virtual void SetRunPause(std::chrono::milliseconds pause) = 0;
  // The next `count` calls fail with this status code.
  virtual void FailRuns(int count, int code) = 0;
  // The next `count` calls answer, but hand nothing over.
  virtual void LoseHandOffs(int count) = 0;

  virtual int64_t num_runs() const = 0;
  virtual int64_t num_cancelled() const = 0;  // calls cancelled by the router
  // Tokens of the last Run: prompt and replayed ones, and how many of them were generated.
  virtual std::vector<int32_t> last_tokens() const = 0;
  virtual int32_t last_num_generated() const = 0;
  virtual uint64_t last_seed() const = 0;
  virtual int32_t last_num_forks() const = 0;
  virtual std::string refusal() const = 0;
};

}  // namespace lodestone

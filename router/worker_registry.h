#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>

#include "base/clock.h"
#include "base/ids.h"
#include "router/async.h"

namespace lodestone {

enum class WorkerRole { kPrefill, kDecode };
enum class WorkerState { kLoading, kReady, kDraining, kUnhealthy };
std::string_view Name(WorkerRole role);
std::string_view Name(WorkerState state);

// What a worker says once, when it serves. While it loads: role, instance_id and model_name only.
struct WorkerHello {
  WorkerRole role = WorkerRole::kPrefill;
  std::string instance_id;
  std::string address;  // host:port of its gRPC server; empty: it does not serve yet
  uint64_t layout_fingerprint = 0;
  std::vector<std::pair<std::string, std::string>> layout;  // name, value
  std::string model_name;
  std::string model_id;
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  int64_t cache_capacity_bytes = 0;
  int32_t max_sequences = 0;
  int64_t bytes_per_sequence = 0;
  int64_t bytes_per_page = 0;
  int32_t page_tokens = 1;
  std::string version;
  int32_t eos_token_id = 0;
};

// What it says every 500 ms.
struct WorkerLoad {
  WorkerState state = WorkerState::kLoading;
  std::string state_reason;
  int64_t queued_tokens = 0;
  int32_t queued_requests = 0;
  int32_t running_requests = 0;
  int64_t free_bytes = 0;
  int32_t free_sequences = 0;
  std::vector<std::string> linked_instance_ids;
  std::vector<std::string> refused_links;
};

class PrefillClient;
class DecodeClient;

// One that wanted to register and was told no.
struct RefusedWorker {
  WorkerRole role = WorkerRole::kPrefill;
  std::string instance_id;
  std::string address;
  std::string reason;
  TimePoint refused_at;
};
// It asks again every 5 s: one that has not asked for so long is gone.
inline constexpr std::chrono::seconds kRefusedStays{15};

// One live worker. The router's own bookkeeping corrects the load between two reports.
struct Worker {
  WorkerHello hello;
  WorkerLoad load;
  TimePoint last_report;
  std::shared_ptr<PrefillClient> prefill;  // by role, one of the two
  std::shared_ptr<DecodeClient> decode;
  int64_t inflight_tokens = 0;    // prefill: dispatched by us and not yet answered
  int consecutive_failures = 0;   // of calls: transport, deadline, internal
  int64_t lost_attempts = 0;      // of requests, since the last that got somewhere
  TimePoint breaker_open_until;   // not used until then while another of its role is there
  CancelSource gone;              // cancelled when the worker leaves: ends what waits for it
};

// Worst case of a request of `tokens` tokens on this worker.
int64_t WorstCaseBytes(const WorkerHello& hello, int64_t tokens);
// The most tokens of one request that fit into an empty worker.
int64_t LargestRequestTokens(const WorkerHello& hello);

// What every worker must agree with to be used at all. Unset fields are not checked. A worker must
// have the name of the router's folder or, under another name, this id of the checkpoint or that of
// the workers that are here.
struct RegistryRules {
  std::string model_name;
  std::string model_id;
  std::string tokenizer_fingerprint;
  int32_t vocab_size = 0;
  int32_t eos_token_id = 0;
  std::chrono::milliseconds worker_timeout{1500};
};

// Who is alive. Loop only.
class WorkerRegistry {
 public:
  // `connect` makes the clients of a new worker.
  using Connect = std::function<void(Worker& worker)>;
  WorkerRegistry(asio::io_context& loop, RegistryRules rules, Connect connect);

  // FAILED_PRECONDITION names the fields in which the worker differs from the router, or from the
  // workers already here (model_id). A worker of an earlier start at the same address is removed.
  // One that loads is listed and not used; it is added again once it serves.
  absl::Status Add(WorkerHello hello, WorkerLoad load, TimePoint reported_at);
  // False if it is not (or no longer) registered: its stream is to be ended.
  bool Report(const std::string& instance_id, WorkerLoad load, TimePoint reported_at);
  void Remove(const std::string& instance_id, std::string why);
  // As Remove, of one that says hello again.
  void Replace(const std::string& instance_id);

  // Removes silent workers; runs until Stop().
  Task<void> WatchSilence();
  void Stop();

  // In order of arrival.
  const std::vector<std::shared_ptr<Worker>>& workers() const { return workers_; }
  std::shared_ptr<Worker> Find(const std::string& instance_id) const;
  // When a worker of the role was last ready and then left, or ceased to be ready; nullopt: never.
  std::optional<TimePoint> LeftAt(WorkerRole role) const;
  // Those that were told no lately.
  std::vector<RefusedWorker> Refused() const;
  // Called when a worker comes, goes or reports.
  void OnChanged(std::function<void()> callback) { on_changed_.push_back(std::move(callback)); }
  // Called for every worker that has just left.
  void OnRemoved(std::function<void(const Worker&)> callback) { on_removed_ = std::move(callback); }

 private:
  // As Remove, without a line in the log.
  void TakeOut(const std::string& instance_id, const std::string& why);
  std::vector<std::string> Differences(const WorkerHello& hello) const;
  void MakeRoomFor(const WorkerHello& hello);
  absl::Status Refuse(const WorkerHello& hello, const std::vector<std::string>& differences);
  std::string ModelIdHere() const;  // of the workers that serve; empty if none does
  void NotifyChanged() const;
  void NoteLeft(const Worker& worker);

  const RegistryRules rules_;
  const Connect connect_;
  std::vector<std::shared_ptr<Worker>> workers_;
  std::map<WorkerRole, TimePoint> left_at_;
  std::map<std::string, RefusedWorker> refused_;  // by instance id
  std::vector<std::function<void()>> on_changed_;
  Event stop_;
  bool stopping_ = false;
  std::function<void(const Worker&)> on_removed_;
};

}  // namespace lodestone

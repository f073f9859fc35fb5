#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "cli/file_lock.h"
#include "cli/process.h"

namespace lodestone {

struct ClusterOptions {
  std::string bin_dir;  // of lodestone-router, lodestone-prefill, lodestone-decode
  std::string run_dir;  // logs and cluster.json; made if missing
  int num_prefill = 1;
  int num_decode = 1;
  // Flags of each kind of process, without those that the cluster sets: ports and --router.
  std::vector<std::string> router_flags;
  std::vector<std::string> prefill_flags;
  std::vector<std::string> decode_flags;
  // Given to workers in turn, prefill first; empty: the workers' own default.
  std::vector<std::string> devices;
  int64_t http_port = 0;  // 0: any free one

  bool restart = true;  // what dies is started again
  std::chrono::milliseconds restart_after{2000};
  std::chrono::milliseconds ready_timeout{300'000};
  std::chrono::milliseconds stop_timeout{15'000};  // SIGTERM to SIGKILL
};

struct ClusterPorts {
  int http = 0;  // router only
  int grpc = 0;
  int data = 0;  // decode only
  int metrics = 0;
};

// One process of the cluster.
struct Member {
  std::string name;               // "router", "prefill-0", "decode-1"
  std::vector<std::string> argv;  // as it would be started again
  std::string log_path;           // its stderr
  std::string out_path;           // its stdout: the line with the ports
  std::optional<ChildProcess> process = {};
  std::optional<ClusterPorts> ports = {};  // once it listens
  int short_lives = 0;                     // deaths right after the start, in a row
  int short_drains = 0;                    // the same, with exit code 0
  // Of the running process; of a dead one: when it is due to be started again.
  std::chrono::steady_clock::time_point started_at = {};
};

// "listening http=1 grpc=2 metrics=3", the line that every binary prints once it listens; nullopt
// for anything else, a line that is not complete included.
std::optional<ClusterPorts> ParseListening(std::string_view text);

// A whole cluster of processes on this machine: a router, then its workers. Not thread-safe, and
// the thread that starts it must live as long as it (ChildProcess). The destructor stops it.
class Cluster {
 public:
  using Report = std::function<void(std::string_view line)>;

  // Starts the processes and returns at once after the router listens; WaitUntilReady does the
  // rest. `note` gets the events, `update` the running state. UNAVAILABLE, with the last lines of
  // the log, if the router does not come up; other members are reported by Supervise.
  // FAILED_PRECONDITION, with the owner's pid, if another cluster uses the run folder.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(ClusterOptions options, Report note,
                                                        Report update);
  ~Cluster();

  // Until /readyz says yes, `cancelled` (CANCELLED) or the timeout (DEADLINE_EXCEEDED with what is
  // missing). UNAVAILABLE if a process dies before that: a bad flag would only die again.
  absl::Status WaitUntilReady(const std::function<bool()>& cancelled);

  // Call every 100 ms or so: sees deaths, reports them, starts again what died after the delay, and
  // at once what was drained (exit code 0), unless it does nothing else.
  // UNAVAILABLE if a process died and must not or cannot be started again.
  absl::Status Supervise();

  // SIGTERM to workers and router, SIGKILL to what is left after the timeout. Idempotent.
  void Stop();

  const std::vector<Member>& members() const { return members_; }
  const ClusterPorts& router_ports() const { return *members_.front().ports; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(router_ports().http); }
  std::string grpc_address() const { return "127.0.0.1:" + std::to_string(router_ports().grpc); }

 private:
  Cluster(FileLock lock, ClusterOptions options, Report note, Report update);
  absl::Status StartRouter();
  void AddWorkers(std::string_view role, int count, const std::vector<std::string>& flags);
  absl::Status Launch(Member& member);
  void ReadPorts(Member& member);
  absl::Status OnDeath(Member& member, const std::string& exit);
  absl::Status CheckAlive();
  void ShowLoading();
  void WriteDescription() const;
  std::string PathOf(const std::string& name) const { return options_.run_dir + "/" + name; }

  FileLock lock_;  // of the run folder, as long as this lives
  const ClusterOptions options_;
  const Report note_;
  const Report update_;
  std::vector<Member> members_;  // the router first
  std::string last_shown_;
};

}  // namespace lodestone

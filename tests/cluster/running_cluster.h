#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/generate_client.h"
#include "cli/process.h"
#include "cli/verify.h"
#include "engine/engine.h"
#include "proto/lodestone/v1/admin.grpc.pb.h"

namespace lodestone {

inline constexpr char kNeedleTiny[] = LODESTONE_SOURCE_DIR "/models/needle-tiny";

// One process of a running cluster, as cluster.json has it.
struct RunningMember {
  std::string name;
  pid_t pid = 0;
  std::string grpc_address;
  int metrics_port = 0;
  std::string log_path;
};

// `lodestone up` as a process of its own, with the real binaries. Stopped by the destructor.
class RunningCluster {
 public:
  // `flags` beside --model, --http-port and --run-dir; `bin_dir` has all the binaries. UNAVAILABLE,
  // with what it said, if it ends or is not ready in `timeout`.
  static absl::StatusOr<std::unique_ptr<RunningCluster>> Start(
      const std::vector<std::string>& flags,
      std::chrono::milliseconds timeout = std::chrono::minutes(3),
      const std::string& bin_dir = LODESTONE_BIN_DIR);
  ~RunningCluster();

  const std::string& url() const { return url_; }
  const std::string& run_dir() const { return run_dir_; }
  pid_t pid() const { return process_.pid(); }  // of `lodestone up`
  std::string router_address() const { return Find("router").grpc_address; }
  std::vector<RunningMember> Members() const;  // read anew
  RunningMember Find(const std::string& name) const;
  // SIGKILL, as the kernel would.
  void KillMember(const std::string& name) const;
  // Until the member runs under another pid than `old` and says that it is ready; false if not in
  // time.
  bool WaitUntilReplaced(const std::string& name, pid_t old) const;
  // SIGTERM; how it ended.
  std::string Stop();
  std::string Output() const;  // of `lodestone up`: both streams

  // nullopt if the worker does not answer.
  static std::optional<v1::GetStatusReply> StatusOf(const RunningMember& member);

 private:
  RunningCluster(ChildProcess process, std::string run_dir);

  ChildProcess process_;
  const std::string run_dir_;
  std::string url_;
};

// What one process answers to the inputs, computed by an engine with these flags.
absl::StatusOr<std::vector<GenerateOutput>> SingleProcessAnswers(
    const ClusterFlags& flags, const std::vector<GenerateInput>& inputs);

// Random prompts of the given lengths, greedy, `new_tokens` each, with log-probabilities.
std::vector<GenerateInput> RandomInputs(const std::vector<int64_t>& lengths, int64_t new_tokens,
                                        int64_t seed);

}  // namespace lodestone

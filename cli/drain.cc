#include "cli/drain.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "cli/cluster_view.h"
#include "cli/command.h"
#include "cli/worker_admin.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kName = "lodestone drain";
constexpr std::string_view kDescription =
    "Takes workers out of service without a failed request: no new ones, the running ones end,\n"
    "then the process exits with 0. SIGTERM to the worker does the same.\n"
    "  lodestone drain 127.0.0.1:8201\n"
    "  lodestone drain --role all --rolling      a rolling restart, under a supervisor";
constexpr milliseconds kCallTimeout(5'000);
constexpr milliseconds kPoll(100);
constexpr milliseconds kLeavingTakes(10'000);  // beyond the drain timeout

// A worker that was asked to drain.
struct Leaving {
  std::string address;
  std::string instance_id;
  std::string role;
};

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string RoleName(v1::WorkerRole role) {
  return role == v1::WORKER_ROLE_PREFILL ? "prefill" : "decode";
}

absl::StatusOr<ClusterView> Router(const DrainConfig& config) {
  ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(config.url));
  return ReadRouter(HttpClient(std::move(url)), kCallTimeout);
}

absl::StatusOr<std::vector<std::string>> Targets(const DrainConfig& config) {
  if (!config.workers.empty()) return config.workers;
  ASSIGN_OR_RETURN(const ClusterView view, Router(config));
  std::vector<std::string> addresses;
  for (const WorkerView& worker : view.workers) {
    const bool chosen = config.role == "all" || worker.role == config.role;
    if (chosen && !worker.address.empty()) addresses.push_back(worker.address);
  }
  if (!addresses.empty()) return addresses;
  return absl::NotFoundError("the router at " + config.url + " has no worker of role " +
                             config.role + " (it has " + std::to_string(view.workers.size()) +
                             " workers)");
}

absl::StatusOr<Leaving> AskToDrain(const std::string& address, const DrainConfig& config) {
  ASSIGN_OR_RETURN(const v1::DrainReply reply,
                   DrainWorker(address, config.drain_timeout, kCallTimeout));
  const std::string role = RoleName(reply.role());
  Say(role + " worker " + address + " drains: " + std::to_string(reply.live_requests()) +
      " requests still to end");
  return Leaving{.address = address, .instance_id = reply.instance_id(), .role = role};
}

// Another start at its address counts as well: its supervisor was quick.
bool HasLeft(const Leaving& worker) {
  const absl::StatusOr<v1::GetStatusReply> status =
      GetWorkerStatus(worker.address, milliseconds(2'000));
  if (status.ok()) return status->instance_id() != worker.instance_id;
  return absl::IsUnavailable(status.status());
}

absl::Status AwaitLeft(const Leaving& worker, const DrainConfig& config) {
  const auto started = steady_clock::now();
  const auto limit = config.drain_timeout + kLeavingTakes;
  while (!HasLeft(worker)) {
    if (steady_clock::now() - started > limit) {
      return absl::DeadlineExceededError("the worker at " + worker.address +
                                         " is still there after " +
                                         std::to_string(limit.count()) + " ms");
    }
    std::this_thread::sleep_for(kPoll);
  }
  const auto took = std::chrono::duration<double>(steady_clock::now() - started).count();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.1f", took);
  Say(worker.role + " worker " + worker.address + " left after " + seconds + " s");
  return absl::OkStatus();
}

int64_t NumReady(const ClusterView& view, const std::string& role, const std::string& but_not) {
  return std::ranges::count_if(view.workers, [&](const WorkerView& worker) {
    return worker.role == role && worker.state == "ready" && worker.instance_id != but_not;
  });
}

// Until as many workers of the role are ready as before, and the cluster is.
absl::Status AwaitReplacement(const Leaving& gone, int64_t num_ready, const DrainConfig& config) {
  const auto deadline = steady_clock::now() + config.replace_timeout;
  int64_t ready = 0;
  while (steady_clock::now() < deadline) {
    const absl::StatusOr<ClusterView> view = Router(config);
    ready = view.ok() ? NumReady(*view, gone.role, gone.instance_id) : 0;
    if (view.ok() && view->ready && ready >= num_ready) {
      Say(gone.role + " workers: " + std::to_string(ready) + " ready again");
      return absl::OkStatus();
    }
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError(
      std::to_string(ready) + " " + gone.role + " workers are ready, " +
      std::to_string(num_ready) + " were before; nobody has started another in " +
      std::to_string(config.replace_timeout.count()) + " ms");
}

absl::Status DrainAll(const std::vector<std::string>& addresses, const DrainConfig& config) {
  std::vector<Leaving> leaving;
  for (const std::string& address : addresses) {
    ASSIGN_OR_RETURN(Leaving worker, AskToDrain(address, config));
    leaving.push_back(std::move(worker));
  }
  for (const Leaving& worker : leaving) RETURN_IF_ERROR(AwaitLeft(worker, config));
  return absl::OkStatus();
}

absl::Status DrainOneByOne(const std::vector<std::string>& addresses, const DrainConfig& config) {
  for (const std::string& address : addresses) {
    ASSIGN_OR_RETURN(const ClusterView before, Router(config));
    ASSIGN_OR_RETURN(const Leaving worker, AskToDrain(address, config));
    const int64_t num_ready = NumReady(before, worker.role, "");
    if (num_ready < 2) Say("it is the only " + worker.role + " worker: requests are refused now");
    RETURN_IF_ERROR(AwaitLeft(worker, config));
    RETURN_IF_ERROR(AwaitReplacement(worker, num_ready, config));
  }
  return absl::OkStatus();
}

int Drain(const DrainConfig& config) {
  if (absl::Status status = config.Validate(); !status.ok()) return PrintUsageError(kName, status);
  const absl::StatusOr<std::vector<std::string>> targets = Targets(config);
  if (!targets.ok()) return PrintFailure(kName, targets.status());
  const absl::Status status =
      config.rolling ? DrainOneByOne(*targets, config) : DrainAll(*targets, config);
  return status.ok() ? 0 : PrintFailure(kName, status);
}

}  // namespace

absl::Status DrainConfig::Validate() const {
  if (workers.empty() == role.empty()) {
    return absl::InvalidArgumentError(
        workers.empty() ? "name workers as HOST:PORT, or a --role"
                        : "workers and --role " + role + " are given: one of them, please");
  }
  for (const std::string& worker : workers) {
    if (worker.find(':') != worker.npos) continue;
    return absl::InvalidArgumentError("worker is \"" + worker +
                                      "\", expected HOST:PORT as `lodestone status` shows it");
  }
  if (drain_timeout.count() < 1) {
    return absl::InvalidArgumentError("--drain-timeout is " +
                                      std::to_string(drain_timeout.count()) +
                                      " ms, must be at least 1 ms");
  }
  return absl::OkStatus();
}

int RunDrain(int argc, const char* const* argv) {
  return RunCommand<DrainConfig>(kName, kDescription, argc, argv, Drain);
}

}  // namespace lodestone

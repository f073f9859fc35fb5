#include "cli/up.h"

#include <memory>
#include <string>
#include <utility>

#include "base/shutdown.h"
#include "cli/cluster.h"
#include "cli/command.h"
#include "cli/progress.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone up";
constexpr std::string_view kDescription =
    "Runs a router, prefill workers and decode workers as processes on this machine.\n"
    "  lodestone up --model models/needle-tiny --http-port 0\n"
    "prints `ready http://127.0.0.1:PORT` once a generation has gone through all of them.\n"
    "Ctrl-C stops them.";

absl::Status WatchUntilShutdown(Cluster& cluster, const ShutdownSignal& shutdown) {
  while (!shutdown.WaitFor(std::chrono::milliseconds(100))) {
    if (absl::Status status = cluster.Supervise(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

int Up(const UpConfig& config) {
  if (absl::Status status = config.cluster.Validate(); !status.ok()) {
    return PrintUsageError(kName, status);
  }
  const ShutdownSignal& shutdown = ShutdownSignal::Install();
  ClusterOptions options = config.cluster.ToClusterOptions();
  options.http_port = config.http_port;
  options.restart = config.restart;
  options.ready_timeout = config.ready_timeout;

  Progress progress;
  progress.Note("1/3 starting 1 router, " + std::to_string(options.num_prefill) + " prefill and " +
                std::to_string(options.num_decode) + " decode; logs in " + options.run_dir);
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(
      std::move(options), [&](std::string_view line) { progress.Note(line); },
      [&](std::string_view line) { progress.Update(line); });
  if (!cluster.ok()) return PrintFailure(kName, cluster.status());

  progress.Note("2/3 loading the model, then one generation through all of them");
  absl::Status status = (*cluster)->WaitUntilReady([&] { return shutdown.Requested(); });
  progress.Clear();
  if (status.ok()) {
    progress.Note("3/3 ready; Ctrl-C stops everything");
    std::printf("ready %s\n", (*cluster)->url().c_str());
    std::fflush(stdout);
    status = WatchUntilShutdown(**cluster, shutdown);
  }
  progress.Note("stopping");
  (*cluster)->Stop();
  if (!status.ok() && !shutdown.Requested()) return PrintFailure(kName, status);
  return 0;
}

}  // namespace

int RunUp(int argc, const char* const* argv) {
  return RunCommand<UpConfig>(kName, kDescription, argc, argv, Up);
}

}  // namespace lodestone

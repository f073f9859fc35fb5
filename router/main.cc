// lodestone-router: the OpenAI and gRPC API in front of prefill and decode workers.
#include <cstdio>

#include "base/build_info.h"
#include "base/config.h"
#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/shutdown.h"
#include "router/router.h"

namespace lodestone {
namespace {

constexpr char kProgram[] = "lodestone-router";

int Main(int argc, char** argv) {
  ShutdownSignal& shutdown = ShutdownSignal::Install();
  RouterConfig config;
  const absl::StatusOr<ParseOutcome> outcome = ParseConfig(
      kProgram, "Takes requests over HTTP and gRPC, places them on workers and streams the tokens.",
      argc, argv, config);
  if (!outcome.ok()) return PrintUsageError(kProgram, outcome.status());
  if (outcome->exit) return PrintAndExit(*outcome);
  SetLogging(config.logging.ToOptions("router"));
  for (const std::string& warning : outcome->warnings) LOG(WARNING) << warning;
  for (const ConfigValue& value : outcome->values) {
    VLOG(1) << value.name << " = " << value.value << " (" << value.origin << ")";
  }
  const absl::StatusOr<std::unique_ptr<Router>> router =
      CatchOutOfMemory("for a router", [&config] { return Router::Start(config); });
  if (!router.ok()) {
    LOG(ERROR) << "cannot start: " << router.status().ToString();
    return 1;
  }
  const Router::Ports ports = (*router)->ports();
  std::printf("listening http=%d grpc=%d metrics=%d\n", ports.http, ports.grpc, ports.metrics);
  std::fflush(stdout);
  LOG(INFO) << kProgram << " " << BuildVersion() << " serves " << config.model << " on "
            << config.bind << ", http " << ports.http << ", grpc " << ports.grpc << ", metrics "
            << ports.metrics;
  while (!shutdown.WaitFor(std::chrono::hours(1))) continue;
  LOG(INFO) << "stopping; running requests have " << FormatDuration(config.drain_timeout);
  (*router)->Stop(config.drain_timeout);
  LOG(INFO) << "stopped";
  return 0;
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) { return lodestone::Main(argc, argv); }

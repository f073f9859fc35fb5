#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/config.h"
#include "base/failpoint.h"
#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/shutdown.h"
#include "worker/worker_config.h"

namespace lodestone {

// Logs warnings about the environment and every setting that is not a default, and arms failpoints.
absl::Status BeginWorker(const ParseOutcome& outcome);

// The main function of a worker binary: settings, start, one line "listening ..." on stdout once it
// serves, the loop, the end. Exit codes: 0 stopped, 1 failed, 2 wrong usage.
//   Config:  worker (WorkerConfig), VisitFields
//   Process: static StatusOr<unique_ptr<Process>> Start(const Config&), ListeningLine(),
//   Run(bool())
template <typename Config, typename Process>
int WorkerMain(const std::string& role, const std::string& description, int argc, char** argv) {
  const ShutdownSignal& shutdown = ShutdownSignal::Install();
  const std::string program = "lodestone-" + role;
  Config config;
  const absl::StatusOr<ParseOutcome> outcome =
      ParseConfig(program, description, argc, argv, config);
  if (!outcome.ok()) return PrintUsageError(program, outcome.status());
  if (outcome->exit) return PrintAndExit(*outcome);
  SetLogging(config.worker.logging.ToOptions(role));
  const auto fail = [](const absl::Status& status) {
    LOG(ERROR) << status.ToString();
    return 1;
  };
  if (const absl::Status status = BeginWorker(*outcome); !status.ok()) return fail(status);
  absl::StatusOr<std::unique_ptr<Process>> process =
      CatchOutOfMemory("for a " + role + " worker", [&config] { return Process::Start(config); });
  if (!process.ok()) return fail(process.status());
  std::printf("%s\n", (*process)->ListeningLine().c_str());
  std::fflush(stdout);
  bool said = false;
  const absl::Status status = (*process)->Run([&shutdown, &said] {
    if (shutdown.Requested() && !std::exchange(said, true)) LOG(INFO) << "asked to end: drains";
    return shutdown.Requested();
  });
  if (status.ok()) {
    LOG(INFO) << "stopped";
    return 0;
  }
  fail(status);
  // Everybody has been told. Giving memory back would wait for a device that may never end its
  // work.
  std::_Exit(1);
}

}  // namespace lodestone

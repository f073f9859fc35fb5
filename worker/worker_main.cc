#include "worker/worker_main.h"

#include "base/build_info.h"

namespace lodestone {

absl::Status BeginWorker(const ParseOutcome& outcome) {
  std::string settings;
  for (const ConfigValue& value : outcome.values) {
    if (value.origin == "default") continue;
    settings += " " + value.name + "=" + value.value + " (" + value.origin + ")";
  }
  LOG(INFO) << "version " << BuildVersion() << ";" << settings;
  for (const std::string& warning : outcome.warnings) LOG(WARNING) << warning;
  return failpoint::ArmFromEnvironment();
}

}  // namespace lodestone

#include "cli/cluster_flags.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "base/status_macros.h"
#include "runtime/device.h"

namespace lodestone {
namespace {

void Add(std::vector<std::string>* flags, const std::string& name, const std::string& value) {
  if (!value.empty()) flags->insert(flags->end(), {name, value});
}

void Append(std::vector<std::string>* flags, const std::vector<std::string>& more) {
  flags->insert(flags->end(), more.begin(), more.end());
}

absl::Status CheckCount(const char* name, int64_t count) {
  if (count >= 1 && count <= 64) return absl::OkStatus();
  return absl::InvalidArgumentError("--" + std::string(name) + " is " + std::to_string(count) +
                                    ", 1 to 64 are possible");
}

}  // namespace

absl::Status ClusterFlags::Validate() const {
  if (absl::Status status = CheckCount("prefill", num_prefill); !status.ok()) return status;
  if (absl::Status status = CheckCount("decode", num_decode); !status.ok()) return status;
  if (!std::filesystem::exists(model + "/config.json")) {
    return absl::InvalidArgumentError("--model " + model + " holds no config.json");
  }
  for (const std::string& name : Devices()) RETURN_IF_ERROR(ParseDevice(name).status());
  return absl::OkStatus();
}

std::vector<std::string> ClusterFlags::Devices() const {
  std::vector<std::string> names;
  std::istringstream list(device);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

ClusterOptions ClusterFlags::ToClusterOptions() const {
  ClusterOptions options;
  options.bin_dir = ProgramDirectory();
  options.num_prefill = static_cast<int>(num_prefill);
  options.num_decode = static_cast<int>(num_decode);
  options.run_dir = run_dir;
  if (run_dir.empty()) {
    options.run_dir =
        (std::filesystem::temp_directory_path() / ("lodestone-" + std::to_string(getpid())))
            .string();
  }
  std::vector<std::string> worker = {"--model", model};
  Add(&worker, "--overlay", overlay);
  Add(&worker, "--numerics", numerics);
  Add(&worker, "--index-k", index_k);
  Add(&worker, "--kv", kv);
  Add(&worker, "--memory", memory);
  Add(&worker, "--threads", threads);
  Add(&worker, "--max-sequences", max_sequences);
  Add(&worker, "--max-context", max_context);
  options.prefill_flags = worker;
  Add(&options.prefill_flags, "--chunk-tokens", chunk_tokens);
  Append(&options.prefill_flags, prefill_flags);
  options.decode_flags = worker;
  Append(&options.decode_flags, decode_flags);
  options.devices = Devices();
  options.router_flags = {"--model", model};
  Append(&options.router_flags, router_flags);
  return options;
}

}  // namespace lodestone

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/config.h"

namespace lodestone {

// `lodestone drain`: workers take no new request, end the running ones, leave.
struct DrainConfig {
  std::vector<std::string> workers;
  std::string role;
  std::string url = "http://127.0.0.1:8080";
  bool rolling = false;
  std::chrono::milliseconds drain_timeout{120'000};
  std::chrono::milliseconds replace_timeout{120'000};

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(workers, "worker", "HOST:PORT of a worker's gRPC server", "Drain",
          FieldTraits{.positional = true});
    visit(role, "role", "all workers of this role that the router at --url has", "Drain",
          FieldTraits{.allowed = {"prefill", "decode", "all"}});
    visit(url, "url", "HTTP address of the router, for --role and --rolling", "Drain");
    visit(rolling, "rolling",
          "one after the other, each after the one before has been replaced by its supervisor",
          "Drain");
    visit(drain_timeout, "drain-timeout", "what runs then is ended", "Drain");
    visit(replace_timeout, "replace-timeout", "longest wait for a replacement", "Drain");
  }

  // INVALID_ARGUMENT: neither workers nor a role, or both.
  absl::Status Validate() const;
};

// Exit code 0: all have left (and, with --rolling, are replaced); 1: not in time.
int RunDrain(int argc, const char* const* argv);

}  // namespace lodestone

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "prefill/config.h"
#include "worker/host.h"

namespace lodestone {

// A prefill worker from flags to ports: everything it consists of, wired.
class PrefillProcess {
 public:
  // Loads the model and serves. Errors are for the person who gave the flags.
  static absl::StatusOr<std::unique_ptr<PrefillProcess>> Start(const PrefillConfig& config);
  ~PrefillProcess();

  // The worker's loop, on the calling thread (PrefillWorker::Loop); does not serve any more when it
  // returns.
  absl::Status Run(const std::function<bool()>& end_requested);

  std::string ListeningLine() const;  // "listening grpc=8101 metrics=9401"
  WorkerHost& host();

 private:
  struct Parts;
  explicit PrefillProcess(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace lodestone

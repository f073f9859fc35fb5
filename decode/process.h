#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "decode/config.h"
#include "worker/host.h"

namespace lodestone {

// A decode worker from flags to ports: everything it consists of, wired.
class DecodeProcess {
 public:
  // Loads the model and serves. Errors are for the person who gave the flags.
  static absl::StatusOr<std::unique_ptr<DecodeProcess>> Start(const DecodeConfig& config);
  ~DecodeProcess();

  // The worker's loop, on the calling thread (DecodeWorker::Loop); does not serve any more when it
  // returns.
  absl::Status Run(const std::function<bool()>& end_requested);

  std::string ListeningLine() const;  // "listening grpc=8201 data=8202 metrics=9402"
  int data_port() const;  // that caches arrive at over TCP; 0: they do not
  WorkerHost& host();

 private:
  struct Parts;
  explicit DecodeProcess(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace lodestone

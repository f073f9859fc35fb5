#pragma once

#include <chrono>
#include <string>

#include <absl/status/statusor.h>

#include "proto/lodestone/v1/admin.grpc.pb.h"

namespace lodestone {

// The admin service of the worker at `address` (host:port of its gRPC server). UNAVAILABLE: nobody
// is there; DEADLINE_EXCEEDED: nobody answers.
absl::StatusOr<v1::GetStatusReply> GetWorkerStatus(const std::string& address,
                                                   std::chrono::milliseconds timeout);
// `drain_timeout` 0: the worker's own.
absl::StatusOr<v1::DrainReply> DrainWorker(const std::string& address,
                                           std::chrono::milliseconds drain_timeout,
                                           std::chrono::milliseconds timeout);

}  // namespace lodestone

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/worker_config.h"

namespace lodestone {

struct DecodeConfig {
  WorkerConfig worker;
  int64_t grpc_port = 8201;
  int64_t data_port = -1;
  int64_t metrics_port = 9402;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    worker.VisitFields(visit);
    visit(grpc_port, "grpc-port", "port of the gRPC server; 0 = any free", "Network");
    visit(data_port, "data-port",
          "port that caches arrive at; 0 = any free, -1 = the gRPC port + 1", "Network");
    visit(metrics_port, "metrics-port", "port of /metrics; 0 = any free", "Network");
  }
};

// The port to listen at for caches; any free one if that of gRPC is. INVALID_ARGUMENT if it is
// none.
absl::StatusOr<int> DataPort(const DecodeConfig& config);

}  // namespace lodestone

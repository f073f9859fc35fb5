#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "engine/engine.h"
#include "monitoring/exposer.h"
#include "monitoring/metrics.h"
#include "proto/lodestone/v1/worker.pb.h"
#include "worker/drain_signal.h"
#include "worker/status_board.h"
#include "worker/worker_config.h"

namespace grpc {
class Service;
}

namespace lodestone {

class Registration;

// What a worker process consists of besides its loop: engine, status, metrics, the registrations
// with routers, and, once it serves, the gRPC server. Made, served and stopped by one thread.
class WorkerHost {
 public:
  // Serves metrics, tells the routers that it loads, and loads the model, with progress on stderr.
  // INVALID_ARGUMENT names the setting that cannot be right.
  static absl::StatusOr<std::unique_ptr<WorkerHost>> Create(v1::WorkerRole role,
                                                            const WorkerConfig& config,
                                                            EngineOptions engine_options,
                                                            int64_t metrics_port);
  ~WorkerHost();

  // Serves `services` (not owned, until Stop), admin, health and reflection, and says so to every
  // router. UNAVAILABLE, with the address, if the port cannot be bound.
  absl::Status Serve(int64_t grpc_port, std::vector<grpc::Service*> services);
  // Reports the last state to the routers and ends the server: calls that are still open end within
  // half a second. Idempotent.
  void Stop();

  const InstanceId& instance() const { return instance_; }
  Engine& engine() { return *engine_; }
  StatusBoard& board() { return board_; }
  const DrainSignal& drain() const { return drain_; }
  Metrics& metrics() { return *metrics_; }
  const WorkerConfig& config() const { return config_; }
  int grpc_port() const;
  int metrics_port() const { return exposer_->port(); }

 private:
  struct Serving;
  WorkerHost(v1::WorkerRole role, const WorkerConfig& config);
  void RegisterAsLoading();
  v1::WorkerLoad Load() const;

  const v1::WorkerRole role_;
  const WorkerConfig config_;
  const InstanceId instance_ = InstanceId::Random();
  std::string model_name_;
  StatusBoard board_;
  DrainSignal drain_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> serves_{false};   // from then on other threads may read the engine's ledger
  std::unique_ptr<Metrics> metrics_;  // reads board and engine
  std::unique_ptr<MetricsExposer> exposer_;
  std::unique_ptr<Serving> serving_;
  std::vector<std::unique_ptr<Registration>> registrations_;  // read board and engine
};

}  // namespace lodestone

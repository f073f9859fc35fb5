#include "prefill/process.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kvtransfer/grpc_link.h"
#include "kvtransfer/sender.h"
#include "prefill/service.h"
#include "prefill/worker.h"
#include "worker/transports.h"

namespace lodestone {

// In the order of construction; destroyed in reverse.
struct PrefillProcess::Parts {
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
  std::unique_ptr<WorkerHost> host;
  std::unique_ptr<ControlDialer> control;
  Transports<DataDialer> data;
  std::unique_ptr<Sender> sender;
  std::unique_ptr<PrefillWorker> worker;
  std::unique_ptr<PrefillService> service;
};

PrefillProcess::PrefillProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

PrefillProcess::~PrefillProcess() { parts_->host->Stop(); }

absl::StatusOr<std::unique_ptr<PrefillProcess>> PrefillProcess::Start(const PrefillConfig& config) {
  ASSIGN_OR_RETURN(const int64_t chunk_tokens, ChunkTokens(config));
  ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(config.worker, chunk_tokens));
  auto parts = std::make_unique<Parts>();
  ASSIGN_OR_RETURN(parts->host, WorkerHost::Create(v1::WORKER_ROLE_PREFILL, config.worker,
                                                   std::move(options), config.metrics_port));
  WorkerHost& host = *parts->host;
  Engine& engine = host.engine();
  const auto wake = [waker = parts->waker] { waker->Wake(); };
  ASSIGN_OR_RETURN(parts->data, MakeDialers(config.worker, wake));
  LinkTimes times = TimesOf(parts->data);
  times.idle = config.link_idle;
  parts->control = std::make_unique<GrpcDialer>(grpc::InsecureChannelCredentials(), times, wake);
  ASSIGN_OR_RETURN(parts->sender,
                   MakeSender({.instance = host.instance(),
                               .layout = engine.layout(),
                               .ops = &engine.ops(),
                               .stream = &engine.stream(),
                               .clock = RealClock(),
                               .control = parts->control.get(),
                               .data = Raw(parts->data),
                               .left_out = parts->data.left_out,
                               .metrics = &host.metrics(),
                               .num_slots = static_cast<int>(config.worker.staging_slots),
                               .slot_bytes = config.worker.staging_slot.bytes,
                               .times = times}));
  PrefillLimits limits{.chunk_tokens = chunk_tokens};
  limits.max_running = std::min(limits.max_running, engine.plan().num_slots);
  limits.logit_rows = engine.options().max_sequences;
  parts->worker = std::make_unique<PrefillWorker>(
      PrefillWorkerOptions{.engine = &engine,
                           .sender = parts->sender.get(),
                           .clock = RealClock(),
                           .board = &host.board(),
                           .metrics = &host.metrics(),
                           .limits = limits,
                           .drain_timeout = config.worker.drain_timeout,
                           .drain = &host.drain(),
                           .waker = parts->waker});
  host.board().SetHangLimit(HangLimitFor(chunk_tokens, engine.options().device));
  parts->service = std::make_unique<PrefillService>(parts->worker.get());
  RETURN_IF_ERROR(host.Serve(config.grpc_port, {parts->service.get()}));
  return std::unique_ptr<PrefillProcess>(new PrefillProcess(std::move(parts)));
}

absl::Status PrefillProcess::Run(const std::function<bool()>& end_requested) {
  const absl::Status status = parts_->worker->Loop(end_requested);
  parts_->host->Stop();
  return status;
}

std::string PrefillProcess::ListeningLine() const {
  return "listening grpc=" + std::to_string(parts_->host->grpc_port()) +
         " metrics=" + std::to_string(parts_->host->metrics_port());
}

WorkerHost& PrefillProcess::host() { return *parts_->host; }

}  // namespace lodestone

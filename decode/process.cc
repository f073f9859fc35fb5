#include "decode/process.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "decode/service.h"
#include "decode/worker.h"
#include "kvtransfer/grpc_link.h"
#include "kvtransfer/receiver.h"
#include "worker/transports.h"

namespace lodestone {

// In the order of construction; destroyed in reverse.
struct DecodeProcess::Parts {
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
  std::unique_ptr<WorkerHost> host;
  std::unique_ptr<GrpcLinkService> links;
  Transports<DataListener> data;
  std::unique_ptr<Receiver> receiver;
  std::unique_ptr<DecodeWorker> worker;
  std::unique_ptr<DecodeService> service;

  // The loop is over, so nobody uses the receiver: its links end now, not by the server's deadline.
  void Stop() {
    links->Shutdown();
    receiver = nullptr;
    host->Stop();
  }
};

DecodeProcess::DecodeProcess(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

DecodeProcess::~DecodeProcess() { parts_->Stop(); }

absl::StatusOr<std::unique_ptr<DecodeProcess>> DecodeProcess::Start(const DecodeConfig& config) {
  ASSIGN_OR_RETURN(const int data_port, DataPort(config));
  // A step has one token of every sequence.
  ASSIGN_OR_RETURN(EngineOptions options,
                   ToEngineOptions(config.worker, config.worker.max_sequences));
  auto parts = std::make_unique<Parts>();
  ASSIGN_OR_RETURN(parts->host, WorkerHost::Create(v1::WORKER_ROLE_DECODE, config.worker,
                                                   std::move(options), config.metrics_port));
  WorkerHost& host = *parts->host;
  Engine& engine = host.engine();
  const auto wake = [waker = parts->waker] { waker->Wake(); };
  ASSIGN_OR_RETURN(parts->data, MakeListeners(config.worker, data_port, wake));
  const LinkTimes times = TimesOf(parts->data);
  parts->links = std::make_unique<GrpcLinkService>(times, wake);
  ASSIGN_OR_RETURN(parts->receiver,
                   MakeReceiver({.instance = host.instance(),
                                 .layout = engine.layout(),
                                 .shape = engine.plan().shape,
                                 .ops = &engine.ops(),
                                 .stream = &engine.stream(),
                                 .clock = RealClock(),
                                 .control = parts->links.get(),
                                 .data = Raw(parts->data),
                                 .left_out = parts->data.left_out,
                                 .metrics = &host.metrics(),
                                 .num_slots = static_cast<int>(config.worker.staging_slots),
                                 .slot_bytes = config.worker.staging_slot.bytes,
                                 .times = times}));
  parts->worker = std::make_unique<DecodeWorker>(
      DecodeWorkerOptions{.engine = &engine,
                          .receiver = parts->receiver.get(),
                          .clock = RealClock(),
                          .board = &host.board(),
                          .metrics = &host.metrics(),
                          .drain_timeout = config.worker.drain_timeout,
                          .drain = &host.drain(),
                          .waker = parts->waker});
  parts->service = std::make_unique<DecodeService>(parts->worker.get());
  RETURN_IF_ERROR(host.Serve(config.grpc_port, {parts->service.get(), parts->links.get()}));
  return std::unique_ptr<DecodeProcess>(new DecodeProcess(std::move(parts)));
}

absl::Status DecodeProcess::Run(const std::function<bool()>& end_requested) {
  const absl::Status status = parts_->worker->Loop(end_requested);
  parts_->Stop();
  return status;
}

std::string DecodeProcess::ListeningLine() const {
  return "listening grpc=" + std::to_string(parts_->host->grpc_port()) +
         " data=" + std::to_string(data_port()) +
         " metrics=" + std::to_string(parts_->host->metrics_port());
}

int DecodeProcess::data_port() const { return parts_->data.all.back()->port(); }

WorkerHost& DecodeProcess::host() { return *parts_->host; }

}  // namespace lodestone

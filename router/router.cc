#include "router/router.h"

#include <future>
#include <thread>

#include <absl/strings/str_cat.h>
#include <boost/asio/executor_work_guard.hpp>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "base/logging.h"
#include "base/processors.h"
#include "base/status_macros.h"
#include "monitoring/exposer.h"
#include "proto/grpc_limits.h"
#include "router/event_loop.h"
#include "router/grpc_service.h"
#include "router/http_service.h"
#include "router/registry_service.h"
#include "router/worker_client.h"

namespace lodestone {
namespace {

constexpr int kPoolThreads = 2;
constexpr char kInferenceName[] = "lodestone.v1.InferenceService";

RegistryRules MakeRules(const RouterConfig& config, const ModelInfo& model) {
  RegistryRules rules;
  rules.model_name = model.directory_name;
  rules.model_id = config.model_id;
  rules.tokenizer_fingerprint = model.tokenizer_fingerprint;
  rules.vocab_size = model.vocab_size;
  rules.eos_token_id = model.eos_token_id;
  rules.worker_timeout = config.worker_timeout;
  return rules;
}

class RouterImpl final : public Router {
 public:
  RouterImpl(const RouterConfig& config, std::unique_ptr<const ModelInfo> model)
      : config_(config),
        model_(std::move(model)),
        metrics_(kRoleRouter),
        router_metrics_(&metrics_),
        registry_(loop_, MakeRules(config_, *model_), [this](Worker& worker) { Connect(worker); }),
        admission_(loop_, config_.ToAdmissionLimits()),
        flow_(loop_, config_.ToFlowSettings(), &registry_, &admission_, &router_metrics_),
        readiness_(loop_, model_.get(), &registry_, &flow_, &router_metrics_),
        tasks_(loop_) {
    context_.loop = &loop_;
    context_.pool = &pool_;
    context_.config = &config_;
    context_.model = model_.get();
    context_.registry = &registry_;
    context_.flow = &flow_;
    context_.readiness = &readiness_;
    context_.router_metrics = &router_metrics_;
    context_.metrics = &metrics_;
    http_service_ = std::make_unique<HttpService>(&context_);
    inference_service_ = MakeInferenceService(&context_);
    registry_service_ = MakeRegistryService(loop_, &registry_);
  }
  ~RouterImpl() override { Stop(std::chrono::milliseconds(0)); }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(http_server_,
                     HttpServer::Start(loop_, config_.bind, static_cast<int>(config_.http_port),
                                       config_.ToHttpLimits(), http_service_.get()));
    RETURN_IF_ERROR(StartGrpc());
    ASSIGN_OR_RETURN(exposer_, MetricsExposer::Start(
                                   config_.bind, static_cast<int>(config_.metrics_port), metrics_));
    ports_.http = http_server_->port();
    ports_.metrics = exposer_->port();
    return absl::OkStatus();
  }

  void Run() {
    registry_.OnChanged([this]() { WorkersChanged(); });
    registry_.OnRemoved([this](const Worker& worker) { router_metrics_.WorkerLeft(worker); });
    tasks_.Spawn(registry_.WatchSilence());
    tasks_.Spawn(readiness_.Watch());
    tasks_.Spawn(UpdateGauges());
    thread_ = std::thread([this]() { RunEventLoop(loop_, SpinTime(UsableProcessors())); });
  }

  Ports ports() const override { return ports_; }

  void Stop(std::chrono::milliseconds drain) override {
    if (!thread_.joinable()) {
      if (grpc_server_ != nullptr) grpc_server_->Shutdown(std::chrono::system_clock::now());
      return;
    }
    std::promise<void> drained;
    asio::post(loop_, [&]() { Spawn(loop_, Drain(drain, drained)); });
    drained.get_future().wait();
    grpc_server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    grpc_server_->Wait();
    guard_.reset();
    thread_.join();
    pool_.join();
  }

 private:
  void Connect(Worker& worker) {
    if (worker.hello.role == WorkerRole::kPrefill) {
      worker.prefill = PrefillClient::Connect(loop_, worker.hello.address);
    } else {
      worker.decode = DecodeClient::Connect(loop_, worker.hello.address);
    }
  }

  absl::Status StartGrpc() {
    grpc::EnableDefaultHealthCheckService(true);
    if (config_.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    const std::string address = absl::StrCat(config_.bind, ":", config_.grpc_port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &ports_.grpc);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.RegisterService(inference_service_.get());
    builder.RegisterService(registry_service_.get());
    grpc_server_ = builder.BuildAndStart();
    if (grpc_server_ == nullptr || ports_.grpc == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                                 " (gRPC): taken, or no address of this machine?"));
    }
    SetServing(false);
    return absl::OkStatus();
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface* health = grpc_server_->GetHealthCheckService();
    if (health == nullptr) return;
    health->SetServingStatus(serving);
    health->SetServingStatus(kInferenceName, serving);
  }

  void WorkersChanged() {
    admission_.NotifyChange();
    readiness_.NotifyChange();
    for (const std::shared_ptr<Worker>& worker : registry_.workers()) {
      router_metrics_.WorkerReady(*worker, worker->load.state == WorkerState::kReady);
    }
  }

  // What changes without an event of its own: gauges and the health service.
  Task<void> UpdateGauges() {
    bool was_ready = false;
    while (!context_.draining) {
      router_metrics_.Load(admission_.num_queued(), admission_.num_running());
      const bool ready = readiness_.ready();
      if (ready != was_ready) SetServing(ready);
      was_ready = ready;
      co_await SleepUntil(loop_, RealClock()->Now() + std::chrono::milliseconds(200));
    }
    SetServing(false);
  }

  Task<void> Drain(std::chrono::milliseconds limit, std::promise<void>& drained) {
    const TimePoint deadline = RealClock()->Now() + limit;
    context_.draining = true;
    readiness_.Stop();
    co_await http_server_->Stop(deadline);
    while (admission_.num_running() + admission_.num_queued() > 0 &&
           RealClock()->Now() < deadline) {
      co_await SleepUntil(loop_, RealClock()->Now() + std::chrono::milliseconds(20));
    }
    registry_.Stop();
    co_await tasks_.WaitUntil(RealClock()->Now() + std::chrono::seconds(5));
    drained.set_value();
  }

  const RouterConfig config_;
  const std::unique_ptr<const ModelInfo> model_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(loop_);
  asio::thread_pool pool_{kPoolThreads};
  Metrics metrics_;
  RouterMetrics router_metrics_;
  WorkerRegistry registry_;
  Admission admission_;
  RequestFlow flow_;
  Readiness readiness_;
  TaskGroup tasks_;
  ServiceContext context_;
  std::unique_ptr<HttpService> http_service_;
  std::unique_ptr<grpc::Service> inference_service_;
  std::unique_ptr<grpc::Service> registry_service_;
  std::unique_ptr<HttpServer> http_server_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<MetricsExposer> exposer_;
  std::thread thread_;
  Ports ports_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterConfig& config) {
  RETURN_IF_ERROR(config.Validate());
  ASSIGN_OR_RETURN(std::unique_ptr<const ModelInfo> model,
                   ModelInfo::Load(config.model, config.served_model_name));
  return Start(config, std::move(model));
}

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterConfig& config,
                                                      std::unique_ptr<const ModelInfo> model) {
  RETURN_IF_ERROR(config.Validate());
  auto router = std::make_unique<RouterImpl>(config, std::move(model));
  RETURN_IF_ERROR(router->Listen());
  router->Run();
  return router;
}

}  // namespace lodestone

#include "worker/host.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "worker/admin_service.h"
#include "worker/grpc_server.h"
#include "worker/load_progress.h"
#include "worker/registration.h"
#include "worker/registration_messages.h"
#include "worker/worker_metrics.h"

namespace lodestone {
namespace {

constexpr std::chrono::milliseconds kStopGrace{500};

// The folder's own name: "models/needle-tiny/" is "needle-tiny".
std::string ModelName(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

absl::Status CheckNetwork(const WorkerConfig& config) {
  if (IsAnyAddress(config.bind) && config.advertise.empty()) {
    return absl::InvalidArgumentError("--bind " + config.bind +
                                      " needs --advertise: others cannot reach that address");
  }
  for (const std::string& router : config.routers) RETURN_IF_ERROR(CheckRouterAddress(router));
  return absl::OkStatus();
}

// Shows the progress on stderr, and the routers the state of it.
LoadProgress ReportProgress(const std::string& what, StatusBoard* board) {
  return [show = ShowLoadProgress(what), board](int64_t done, int64_t total) {
    show(done, total);
    board->Set({.state = LoopState::kLoading,
                .reason = "loaded " + FormatBytes(static_cast<uint64_t>(done)) + " of " +
                          FormatBytes(static_cast<uint64_t>(total))});
  };
}

}  // namespace

struct WorkerHost::Serving {
  std::unique_ptr<AdminService> admin;
  GrpcServer server;
};

WorkerHost::WorkerHost(v1::WorkerRole role, const WorkerConfig& config)
    : role_(role), config_(config), model_name_(ModelName(config.model)) {}

WorkerHost::~WorkerHost() { Stop(); }

absl::StatusOr<std::unique_ptr<WorkerHost>> WorkerHost::Create(v1::WorkerRole role,
                                                               const WorkerConfig& config,
                                                               EngineOptions engine_options,
                                                               int64_t metrics_port) {
  RETURN_IF_ERROR(CheckNetwork(config));
  std::unique_ptr<WorkerHost> host(new WorkerHost(role, config));
  host->metrics_ = std::make_unique<Metrics>(
      role == v1::WORKER_ROLE_PREFILL ? MetricRole::kRolePrefill : MetricRole::kRoleDecode);
  ASSIGN_OR_RETURN(
      host->exposer_,
      MetricsExposer::Start(config.bind, static_cast<int>(metrics_port), *host->metrics_));
  if (config.routers.empty()) LOG(WARNING) << "no --router is given: no request comes here";
  host->RegisterAsLoading();
  engine_options.progress = ReportProgress(host->model_name_, &host->board_);
  engine_options.step_progress = [board = &host->board_] { board->NoteProgress(); };
  ASSIGN_OR_RETURN(host->engine_, Engine::Create(engine_options));
  ExportWorkerMetrics(role, host->model_name_, host->engine_.get(), &host->board_,
                      host->metrics_.get());
  const MemoryPlan& plan = host->engine_->plan();
  LOG(INFO) << "loaded " << host->model_name_ << " as instance " << host->instance_.ToString()
            << ": " << plan.num_slots << " sequences at once, " << plan.AffineLaw()
            << ", longest context " << plan.largest_context << " tokens";
  return host;
}

absl::Status WorkerHost::Serve(int64_t grpc_port, std::vector<grpc::Service*> services) {
  auto serving = std::make_unique<Serving>();
  CachePool& cache = engine_->cache();
  serving->admin = std::make_unique<AdminService>(role_, instance_, &cache.plan(), &cache.ledger(),
                                                  &board_, &drain_);
  services.push_back(serving->admin.get());
  ASSIGN_OR_RETURN(serving->server, StartGrpcServer(config_.bind, grpc_port, services));
  const std::string host = config_.advertise.empty() ? config_.bind : config_.advertise;
  const v1::WorkerHello hello = MakeHello(
      role_, instance_, host + ":" + std::to_string(serving->server.port), model_name_, *engine_);
  serves_ = true;
  for (const auto& registration : registrations_) registration->SetHello(hello);
  serving_ = std::move(serving);
  return absl::OkStatus();
}

// What a router is told before it can send work here: enough for operators to see who loads.
void WorkerHost::RegisterAsLoading() {
  v1::WorkerHello hello;
  hello.set_role(role_);
  hello.set_instance_id(instance_.ToString());
  hello.set_model_name(model_name_);
  for (const std::string& router : config_.routers) {
    registrations_.push_back(
        std::make_unique<Registration>(router, hello, [this] { return Load(); }, &board_));
  }
}

v1::WorkerLoad WorkerHost::Load() const {
  if (!serves_) return MakeLoadingLoad(board_.Get());
  CachePool& cache = engine_->cache();
  return MakeLoad(board_.Get(), cache.ledger().Snapshot(), cache.plan());
}

void WorkerHost::Stop() {
  if (serving_ != nullptr) serving_->server.SetServing(false);
  registrations_.clear();
  if (serving_ == nullptr) return;
  serving_->server.Shutdown(kStopGrace);
  serving_ = nullptr;
}

int WorkerHost::grpc_port() const { return serving_ == nullptr ? 0 : serving_->server.port; }

}  // namespace lodestone

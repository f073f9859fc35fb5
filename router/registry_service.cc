#include "router/registry_service.h"

#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <grpcpp/grpcpp.h>

#include "base/ids.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {
namespace {

WorkerState FromProto(v1::WorkerState state) {
  switch (state) {
    case v1::WORKER_STATE_READY:
      return WorkerState::kReady;
    case v1::WORKER_STATE_DRAINING:
      return WorkerState::kDraining;
    case v1::WORKER_STATE_UNHEALTHY:
      return WorkerState::kUnhealthy;
    default:
      return WorkerState::kLoading;
  }
}

WorkerHello FromProto(const v1::WorkerHello& proto) {
  WorkerHello hello;
  hello.role = proto.role() == v1::WORKER_ROLE_DECODE ? WorkerRole::kDecode : WorkerRole::kPrefill;
  hello.instance_id = proto.instance_id();
  hello.address = proto.address();
  hello.layout_fingerprint = proto.layout().fingerprint();
  for (const v1::LayoutField& field : proto.layout().fields()) {
    hello.layout.emplace_back(field.name(), field.value());
  }
  hello.model_name = proto.model_name();
  hello.model_id = proto.model_id();
  hello.vocab_size = proto.vocab_size();
  hello.max_context_tokens = proto.max_context_tokens();
  hello.cache_capacity_bytes = proto.cache_capacity_bytes();
  hello.max_sequences = proto.max_sequences();
  hello.bytes_per_sequence = proto.bytes_per_sequence();
  hello.bytes_per_page = proto.bytes_per_page();
  hello.page_tokens = proto.page_tokens();
  hello.version = proto.version();
  hello.eos_token_id = proto.eos_token_id();
  return hello;
}

WorkerLoad FromProto(const v1::WorkerLoad& proto) {
  WorkerLoad load;
  load.state = FromProto(proto.state());
  load.state_reason = proto.state_reason();
  load.queued_tokens = proto.queued_tokens();
  load.queued_requests = proto.queued_requests();
  load.running_requests = proto.running_requests();
  load.free_bytes = proto.free_bytes();
  load.free_sequences = proto.free_sequences();
  load.linked_instance_ids.assign(proto.linked_instance_ids().begin(),
                                  proto.linked_instance_ids().end());
  load.refused_links.assign(proto.refused_links().begin(), proto.refused_links().end());
  return load;
}

// One worker's registration. Lives until gRPC has reported its end, which deletes it, on the loop.
class Registration final : public grpc::ServerBidiReactor<v1::WorkerReport, v1::RegistryReply> {
 public:
  Registration(asio::io_context& loop, WorkerRegistry* registry, std::string router_id)
      : loop_(loop),
        registry_(*registry),
        router_id_(std::move(router_id)),
        guard_(asio::make_work_guard(loop)) {
    StartRead(&report_);
  }

  void OnReadDone(bool ok) override {
    const TimePoint arrived_at = RealClock()->Now();
    asio::post(loop_, [this, ok, arrived_at]() {
      if (finished_) return;
      if (!ok) return End(grpc::Status::OK, "its stream ended");
      const absl::Status status = Take(arrived_at);
      if (!status.ok()) return Refuse(status);
      StartRead(&report_);
    });
  }

  void OnWriteDone(bool) override {
    asio::post(loop_, [this]() {
      if (!refusal_.ok() && !std::exchange(finished_, true)) {
        Finish(grpc::Status(static_cast<grpc::StatusCode>(refusal_.code()),
                            std::string(refusal_.message())));
      }
    });
  }

  void OnCancel() override {
    asio::post(loop_, [this]() { End(grpc::Status::CANCELLED, "its stream broke"); });
  }

  void OnDone() override {
    asio::post(loop_, [this]() { delete this; });
  }

 private:
  absl::Status Take(TimePoint arrived_at) {
    if (report_.has_hello()) return Register(arrived_at);
    if (instance_id_.empty()) {
      return absl::InvalidArgumentError("the first report has no hello");
    }
    registry_.Report(instance_id_, FromProto(report_.load()), arrived_at);
    return absl::OkStatus();
  }

  // Again on the same stream when a worker has loaded its model.
  absl::Status Register(TimePoint arrived_at) {
    gone_ = {};
    if (!instance_id_.empty()) registry_.Replace(std::exchange(instance_id_, {}));
    WorkerHello hello = FromProto(report_.hello());
    const std::string instance_id = hello.instance_id;
    const absl::Status added =
        registry_.Add(std::move(hello), FromProto(report_.load()), arrived_at);
    if (!added.ok()) return added;
    instance_id_ = instance_id;
    gone_ = registry_.Find(instance_id)->gone.OnCancel([this](const absl::Status& reason) {
      instance_id_.clear();
      Refuse(reason);
    });
    if (reply_.accepted()) return absl::OkStatus();  // it has been told
    reply_.set_accepted(true);
    reply_.set_router_id(router_id_);
    StartWrite(&reply_);
    return absl::OkStatus();
  }

  // Tells the worker why, then ends the stream. The reply of an acceptance may still be on its way:
  // then the status alone says it.
  void Refuse(const absl::Status& status) {
    if (finished_ || !refusal_.ok()) return;
    if (reply_.accepted()) {
      finished_ = true;
      return Finish(grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                                 std::string(status.message())));
    }
    refusal_ = status;
    reply_.mutable_error()->set_code(static_cast<int32_t>(status.code()));
    reply_.mutable_error()->set_message(std::string(status.message()));
    reply_.set_router_id(router_id_);
    StartWrite(&reply_);
  }

  void End(const grpc::Status& status, const char* why) {
    if (std::exchange(finished_, true)) return;
    const std::string instance_id = std::exchange(instance_id_, {});
    gone_ = {};
    if (!instance_id.empty()) registry_.Remove(instance_id, why);
    Finish(status);
  }

  asio::io_context& loop_;
  WorkerRegistry& registry_;
  const std::string router_id_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  v1::WorkerReport report_;
  v1::RegistryReply reply_;
  std::string instance_id_;  // empty until accepted
  CancelSource::Registration gone_;
  absl::Status refusal_;
  bool finished_ = false;
};

class RegistryService final : public v1::WorkerRegistry::CallbackService {
 public:
  RegistryService(asio::io_context& loop, WorkerRegistry* registry)
      : loop_(loop), registry_(registry), router_id_(InstanceId::Random().ToString()) {}

  grpc::ServerBidiReactor<v1::WorkerReport, v1::RegistryReply>* Register(
      grpc::CallbackServerContext*) override {
    return new Registration(loop_, registry_, router_id_);
  }

 private:
  asio::io_context& loop_;
  WorkerRegistry* const registry_;
  const std::string router_id_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistryService(asio::io_context& loop,
                                                   WorkerRegistry* registry) {
  return std::make_unique<RegistryService>(loop, registry);
}

}  // namespace lodestone

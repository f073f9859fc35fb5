#include "worker/admin_service.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/logging.h"
#include "worker/registration_messages.h"

namespace lodestone {
namespace {

// Requests that a drain waits for.
int32_t LiveRequests(const WorkerStatus& status) {
  return static_cast<int32_t>(std::max(
      status.live_leases,
      status.queued_requests + status.running_requests + status.inflight_handoffs));
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*,
                                                  v1::GetStatusReply* reply) {
  const WorkerStatus status = board_.Get();
  const MemorySnapshot memory = ledger_.Snapshot();
  reply->set_instance_id(instance_.ToString());
  reply->set_role(role_);
  *reply->mutable_load() = MakeLoad(status, memory, plan_);
  for (int i = 0; i < kNumMemoryPools; ++i) {
    const MemoryPool pool = static_cast<MemoryPool>(i);
    v1::MemoryPoolStatus* out = reply->add_pools();
    out->set_pool(std::string(Name(pool)));
    out->set_used_bytes(memory.used[pool]);
    out->set_capacity_bytes(memory.capacity[pool]);
  }
  reply->set_reserved_bytes(memory.reserved_bytes);
  reply->set_orphan_bytes(memory.orphan_bytes);
  reply->set_live_leases(static_cast<int32_t>(memory.num_leases));
  reply->set_live_sequences(
      static_cast<int32_t>(status.running_requests + status.inflight_handoffs));
  reply->set_used_pages(plan_.num_pages - memory.free_pages);
  reply->set_num_pages(plan_.num_pages);
  reply->set_num_steps(status.num_steps);
  const auto since = board_.SinceLastStep();
  reply->set_seconds_since_step(since ? std::chrono::duration<double>(*since).count() : -1);
  for (const LinkStatus& link : status.links) {
    v1::LinkStatus* out = reply->add_links();
    out->set_decode_instance_id(link.decode_instance);
    out->set_up(link.up);
    out->set_transport(link.transport);
    out->set_reason(link.reason);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->timeout_ms() < 0) {
    reactor->Finish(grpc::Status(
        grpc::StatusCode::INVALID_ARGUMENT,
        "timeout_ms is " + std::to_string(request->timeout_ms()) + ", must be 0 or more"));
    return reactor;
  }
  LOG(INFO) << "an operator asks to drain";
  drain_.Request(std::chrono::milliseconds(request->timeout_ms()));
  reply->set_instance_id(instance_.ToString());
  reply->set_role(role_);
  reply->set_live_requests(LiveRequests(board_.Get()));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace lodestone

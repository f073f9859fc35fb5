#include "worker/admin_service.h"

#include <string>

#include "worker/registration_messages.h"

namespace lodestone {

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
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace lodestone

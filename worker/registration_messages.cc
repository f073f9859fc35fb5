#include "worker/registration_messages.h"

#include <algorithm>

#include "base/build_info.h"
#include "kvcache/layout.h"

namespace lodestone {
namespace {

v1::WorkerState ToProto(LoopState state) {
  switch (state) {
    case LoopState::kLoading:
      return v1::WORKER_STATE_LOADING;
    case LoopState::kReady:
      return v1::WORKER_STATE_READY;
    case LoopState::kDraining:
      return v1::WORKER_STATE_DRAINING;
    case LoopState::kUnhealthy:
      return v1::WORKER_STATE_UNHEALTHY;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

void SetLayout(const LayoutDescriptor& layout, v1::Layout* proto) {
  proto->set_fingerprint(LayoutFingerprint(layout));
  for (const LayoutField& field : layout) {
    v1::LayoutField* out = proto->add_fields();
    out->set_name(field.name);
    out->set_value(field.value);
  }
}

// Of one sequence that takes all of `pages`. Slots are no pages: counting them all would promise
// room for pages that do not exist.
int64_t CacheBytes(const MemoryPlan& plan, int64_t pages, int64_t slots) {
  return pages * plan.bytes_per_page.total() +
         std::min<int64_t>(slots, 1) * plan.bytes_per_slot.total();
}

}  // namespace

int64_t ReservableBytes(const MemorySnapshot& memory, const MemoryPlan& plan) {
  return CacheBytes(plan, memory.free_pages, memory.free_slots);
}

v1::WorkerHello MakeHello(v1::WorkerRole role, const InstanceId& instance,
                          const std::string& address, const std::string& model_name,
                          const Engine& engine) {
  const MemoryPlan& plan = engine.plan();
  v1::WorkerHello hello;
  hello.set_role(role);
  hello.set_instance_id(instance.ToString());
  hello.set_address(address);
  SetLayout(engine.layout(), hello.mutable_layout());
  hello.set_model_name(model_name);
  hello.set_model_id(engine.model_id());
  hello.set_vocab_size(static_cast<int32_t>(engine.config().vocab_size));
  hello.set_max_context_tokens(
      static_cast<int32_t>(std::min(plan.max_context, plan.largest_context)));
  hello.set_cache_capacity_bytes(CacheBytes(plan, plan.num_pages, plan.num_slots));
  hello.set_max_sequences(static_cast<int32_t>(plan.num_slots));
  hello.set_bytes_per_sequence(plan.bytes_per_slot.total());
  hello.set_bytes_per_page(plan.bytes_per_page.total());
  hello.set_page_tokens(kPageTokens);
  hello.set_version(std::string(BuildVersion()));
  hello.set_eos_token_id(engine.config().eos_ids.front());
  return hello;
}

v1::WorkerLoad MakeLoadingLoad(const WorkerStatus& status) {
  v1::WorkerLoad load;
  load.set_state(v1::WORKER_STATE_LOADING);
  load.set_state_reason(status.reason);
  return load;
}

v1::WorkerLoad MakeLoad(const WorkerStatus& status, const MemorySnapshot& memory,
                        const MemoryPlan& plan) {
  v1::WorkerLoad load;
  load.set_state(ToProto(status.state));
  load.set_state_reason(status.reason);
  load.set_queued_tokens(status.queued_tokens);
  load.set_queued_requests(static_cast<int32_t>(status.queued_requests));
  load.set_running_requests(static_cast<int32_t>(status.running_requests));
  load.set_free_bytes(ReservableBytes(memory, plan));
  load.set_free_sequences(static_cast<int32_t>(memory.free_slots));
  load.mutable_linked_instance_ids()->Add(status.linked_instances.begin(),
                                          status.linked_instances.end());
  for (const LinkStatus& link : status.links) {
    if (link.up) load.add_linked_instance_ids(link.decode_instance);
  }
  load.mutable_refused_links()->Add(status.refused_links.begin(), status.refused_links.end());
  return load;
}

}  // namespace lodestone

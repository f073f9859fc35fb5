#pragma once

#include "base/ids.h"
#include "kvcache/ledger.h"
#include "kvcache/planner.h"
#include "proto/lodestone/v1/admin.grpc.pb.h"
#include "worker/drain_signal.h"
#include "worker/status_board.h"

namespace lodestone {

// AdminService of a worker, answered from snapshots without troubling its loop.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  // Nothing is owned; plan, ledger, board and drain must outlive this.
  AdminService(v1::WorkerRole role, const InstanceId& instance, const MemoryPlan* plan,
               const Ledger* ledger, const StatusBoard* board, DrainSignal* drain)
      : role_(role),
        instance_(instance),
        plan_(*plan),
        ledger_(*ledger),
        board_(*board),
        drain_(*drain) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;

 private:
  const v1::WorkerRole role_;
  const InstanceId instance_;
  const MemoryPlan& plan_;
  const Ledger& ledger_;
  const StatusBoard& board_;
  DrainSignal& drain_;
};

}  // namespace lodestone

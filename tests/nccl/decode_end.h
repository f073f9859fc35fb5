// The decode worker of a measured hand-off: a real receiver with its loop in a thread, control over
// gRPC, pages of V4-Flash shape on a GPU. In this process (DecodeHere), or in one of its own
// (decode_process.h), as workers are.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/waker.h"
#include "kvtransfer/grpc_link.h"
#include "tests/kvtransfer/worker_pair.h"
#include "tests/nccl/gpu_side.h"
#include "worker/grpc_server.h"

namespace lodestone::nccl {

// One thread calls.
class DecodeEnd {
 public:
  virtual ~DecodeEnd() = default;
  virtual InstanceId instance() const = 0;
  virtual std::string address() const = 0;  // of its gRPC server
  virtual std::vector<LeaseId> Reserve(int64_t tokens, int count) = 0;
  // When it last adopted a request, by the host's steady clock, which all processes share.
  virtual TimePoint adopted_at() = 0;
  // SampleOf the rows that arrived.
  virtual std::vector<std::byte> Sample(LeaseId lease, int64_t tokens) = 0;
  virtual void Free(const std::vector<LeaseId>& leases) = 0;
  virtual std::string Phases() = 0;  // MeanPhases
};

class DecodeHere final : public DecodeEnd {
 public:
  struct Options {
    EndOptions end;
    std::unique_ptr<DataListener> listener = nullptr;
    std::shared_ptr<Waker> waker;
  };
  explicit DecodeHere(Options options);
  ~DecodeHere() override;

  InstanceId instance() const override { return instance_; }
  std::string address() const override { return "127.0.0.1:" + std::to_string(server_.port); }
  std::vector<LeaseId> Reserve(int64_t tokens, int count) override;
  TimePoint adopted_at() override;
  std::vector<std::byte> Sample(LeaseId lease, int64_t tokens) override;
  void Free(const std::vector<LeaseId>& leases) override;
  std::string Phases() override { return MeanPhases(metrics_); }

 private:
  class Target final : public FakeDecode {
   public:
    using FakeDecode::FakeDecode;
    absl::Status Adopt(Handoff handoff) override {
      adopted_at = RealClock()->Now();
      return FakeDecode::Adopt(std::move(handoff));
    }
    TimePoint adopted_at{};
  };
  void Loop();

  const CacheShape shape_;
  Options options_;
  GpuSide gpu_;
  Mutex mutex_;  // of target_, which both threads use
  Target target_;
  Metrics metrics_{MetricRole::kRoleDecode};
  GrpcLinkService service_;
  GrpcServer server_;
  const InstanceId instance_ = InstanceId::Random();
  std::unique_ptr<SlotReceiver> receiver_;
  std::atomic<bool> stop_ = false;
  std::thread loop_;
};

}  // namespace lodestone::nccl

// A prefill and a decode worker as far as their hand-off goes: real sender and receiver, the decode
// loop in a thread, control over gRPC; and pages of V4-Flash shape on GPUs. What moves the slots is
// given.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/waker.h"
#include "kernels/ops.h"
#include "kvtransfer/grpc_link.h"
#include "tests/kvtransfer/worker_pair.h"
#include "worker/grpc_server.h"

namespace lodestone::nccl {

// What a worker has on its GPU.
struct GpuSide {
  GpuSide(DeviceId device, const CacheShape& shape, int64_t tokens);
  ThreadPool threads{1};
  Stream stream;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<CachePool> pool;
};

// The same rows, in runs of one page at most.
std::vector<RowRun> PiecesOf(const std::vector<RowRun>& runs);
// Bytes that differ from one such piece to the next.
void FillRuns(const std::vector<RowRun>& runs, DeviceId device);
std::vector<std::byte> BytesOf(const RowRun& run);

class HandoffPair {
 public:
  struct Options {
    DeviceId prefill_gpu;
    DeviceId decode_gpu;
    std::unique_ptr<DataDialer> dialer = nullptr;
    std::unique_ptr<DataListener> listener = nullptr;
    std::shared_ptr<Waker> prefill_waker;
    std::shared_ptr<Waker> decode_waker;
    int64_t slot_bytes;
    int num_slots;
    int64_t tokens;  // of the longest sequence
  };
  explicit HandoffPair(Options options);
  ~HandoffPair();

  CachePool& prefill_pool() { return *prefill_.pool; }
  DeviceId prefill_gpu() const { return options_.prefill_gpu; }

  // Seconds until `count` requests with that cache, begun together, are all adopted; less than 0 if
  // one fails. Their leases are in `leases`.
  double HandOver(const SequenceCache& cache, int64_t tokens, int count,
                  std::vector<LeaseId>* leases);
  SequenceCache& Arrived(LeaseId lease) { return *decode_.caches.at(lease); }
  void Free(const std::vector<LeaseId>& leases);

  // " pack 0.05 wait 0.1 | scatter 0.06 ms" and so on: means of the phases so far, as each side
  // counts them.
  std::string Phases();

 private:
  static LinkTimes Times();
  void DecodeLoop();

  const CacheShape shape_;
  Options options_;
  GpuSide prefill_;
  GpuSide decode_gpu_;
  Mutex mutex_;  // of decode_, which both threads use
  FakeDecode decode_;
  Metrics metrics_{MetricRole::kRolePrefill};
  Metrics decode_metrics_{MetricRole::kRoleDecode};
  GrpcDialer control_;
  GrpcLinkService service_;
  GrpcServer server_;
  const InstanceId instance_ = InstanceId::Random();
  std::unique_ptr<SlotSender> sender_;
  std::unique_ptr<SlotReceiver> receiver_;
  std::atomic<bool> stop_ = false;
  std::thread loop_;
};

// Hands over prompts of several lengths, compares bytes of the first of each, and prints the best
// time of each as a RESULT with `what`, beside `copy` bytes per second.
void MeasureHandoffs(HandoffPair& pair, int64_t most_tokens, double copy, const std::string& what);

}  // namespace lodestone::nccl

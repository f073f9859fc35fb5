// A prefill and a decode worker as far as their hand-off goes: real sender and receiver, control
// over gRPC, pages of V4-Flash shape on GPUs. What moves the slots is given, and so is the decode
// worker: in this process or in one of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/nccl/decode_end.h"

namespace lodestone::nccl {

// A prefill worker whose loop is the test's thread, and the decode worker that it hands over to.
class HandoffPair {
 public:
  struct Options {
    EndOptions end;
    std::unique_ptr<DataDialer> dialer = nullptr;
    std::shared_ptr<Waker> waker;
  };
  HandoffPair(Options options, std::unique_ptr<DecodeEnd> decode);

  // From the beginning of hand-offs begun together until all are adopted.
  struct Seconds {
    double adopted = -1;  // at decode, which goes on then; less than 0 if one failed
    double known = -1;    // to prefill, which then frees its pages
  };
  Seconds HandOver(const SequenceCache& cache, int64_t tokens, int count,
                   std::vector<LeaseId>* leases);

  CachePool& prefill_pool() { return *gpu_.pool; }
  DeviceId prefill_gpu() const { return options_.end.gpu; }
  DecodeEnd& decode() { return *decode_; }
  std::string Phases() { return MeanPhases(metrics_) + " |" + decode_->Phases() + " ms"; }

 private:
  const CacheShape shape_;
  Options options_;
  GpuSide gpu_;
  Metrics metrics_{MetricRole::kRolePrefill};
  std::unique_ptr<DecodeEnd> decode_;
  GrpcDialer control_;
  std::unique_ptr<SlotSender> sender_;
};

// Hands over prompts of several lengths, compares bytes of the first of each, and prints the best
// and the median time of each until decode has adopted it as a RESULT with `what`, beside `copy`
// bytes per second.
void MeasureHandoffs(HandoffPair& pair, int64_t most_tokens, double copy, const std::string& what);

}  // namespace lodestone::nccl

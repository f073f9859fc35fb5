#include "tests/nccl/handoff_pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "kvtransfer/rows.h"
#include "tests/kvcache/shapes.h"
#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {

using std::chrono::milliseconds;

HandoffPair::HandoffPair(Options options, std::unique_ptr<DecodeEnd> decode)
    : shape_(FlashShape()),
      options_(std::move(options)),
      gpu_(options_.end.gpu, shape_, options_.end.tokens),
      decode_(std::move(decode)),
      control_(grpc::InsecureChannelCredentials(), TimesOfWorkers(),
               [waker = options_.waker] { waker->Wake(); }) {
  sender_ = SlotSender::Create({.instance = InstanceId::Random(),
                                .layout = TinyLayout(shape_),
                                .ops = gpu_.ops.get(),
                                .stream = &gpu_.stream,
                                .clock = RealClock(),
                                .control = &control_,
                                .data = {options_.dialer.get()},
                                .metrics = &metrics_,
                                .num_slots = options_.end.num_slots,
                                .slot_bytes = options_.end.slot_bytes,
                                .times = TimesOfWorkers()})
                .value();
}

HandoffPair::Seconds HandoffPair::HandOver(const SequenceCache& cache, int64_t tokens, int count,
                                           std::vector<LeaseId>* leases) {
  *leases = decode_->Reserve(tokens, count);
  std::vector<Handoff> handoffs(leases->size(), WorkerPair::MakeHandoff(tokens));
  const std::string address = decode_->address();
  const TimePoint start = RealClock()->Now();
  for (size_t i = 0; i < handoffs.size(); ++i) {
    const LeaseId lease = (*leases)[i];
    sender_->Begin(lease, decode_->instance(), address, &cache);
    sender_->GrowTo(lease, tokens);
    sender_->Finish(lease, std::move(handoffs[i]));
  }
  int adopted = 0;
  while (SecondsSince(start) < 10) {
    for (const HandoffOutcome& outcome : sender_->Pump()) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      if (!outcome.status.ok()) return {};
      if (++adopted < count) continue;
      const double known = SecondsSince(start);
      return {std::chrono::duration<double>(decode_->adopted_at() - start).count(), known};
    }
    if (!sender_->MovesRows()) options_.waker->WaitUntil(RealClock()->Now() + milliseconds(5));
  }
  return {};
}

void MeasureHandoffs(HandoffPair& pair, int64_t most_tokens, double copy, const std::string& what) {
  constexpr int kRepeats = 7;
  auto cache = pair.prefill_pool().MakeSequenceFor(most_tokens).value();
  ASSERT_TRUE(cache->Reserve(most_tokens).ok());
  FillRuns(AllRuns(*cache, most_tokens), pair.prefill_gpu());
  std::vector<LeaseId> leases;
  ASSERT_GT(pair.HandOver(*cache, 300, 1, &leases).adopted, 0);  // the link comes up
  pair.decode().Free(leases);
  for (const auto& [tokens, count] : {std::pair{int64_t{10'500}, 1},
                                      {int64_t{10'500}, 4},
                                      {int64_t{40'000}, 1},
                                      {most_tokens, 1},
                                      {most_tokens, 3}}) {
    const std::vector<RowRun> runs = AllRuns(*cache, tokens);
    const double bytes = count * static_cast<double>(TotalBytes(CountKinds(runs)));
    std::vector<double> adopted;
    std::vector<double> known;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const HandoffPair::Seconds seconds = pair.HandOver(*cache, tokens, count, &leases);
      ASSERT_GT(seconds.adopted, 0);
      adopted.push_back(seconds.adopted);
      known.push_back(seconds.known);
      if (repeat == 0) {
        ASSERT_TRUE(SampleOf(runs) == pair.decode().Sample(leases.back(), tokens));
      }
      pair.decode().Free(leases);
    }
    std::sort(adopted.begin(), adopted.end());
    std::sort(known.begin(), known.end());
    std::printf(
        "RESULT hand-off of %d x %lld tokens, %.0f MB, %s: adopted after %.3f ms, %.1f "
        "GB/s, %.3f of the copy (median of %d %.3f ms, %.3f); known to prefill %.3f ms\n",
        count, static_cast<long long>(tokens), bytes / 1e6, what.c_str(), 1e3 * adopted.front(),
        bytes / adopted.front() / 1e9, bytes / adopted.front() / copy, kRepeats,
        1e3 * adopted[kRepeats / 2], bytes / adopted[kRepeats / 2] / copy, 1e3 * known.front());
  }
  std::printf("  mean phases:%s\n", pair.Phases().c_str());
}

}  // namespace lodestone::nccl

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

constexpr int64_t kLongest = 5000;

double Digests(Metrics& metrics, CacheKind kind, const char* result) {
  return metrics
      .Counter(MetricId::kHandoffDigests, {{"kind", std::string(Name(kind))}, {"result", result}})
      .Value();
}

// Prompts of random lengths in random chunks, between pools whose free pages lie anywhere: every
// kind of row arrives byte for byte, and its own digest says so on the decode worker.
TEST(RandomLengthTest, EveryKindArrivesAndIsDigested) {
  WorkerPair pair(
      {.prefill_slot_bytes = 1 << 16, .decode_slot_bytes = 1 << 16, .max_context = 8192});
  std::mt19937 random(3);
  std::vector<LeaseId> kept;  // so that pages come and go in another order than they were taken
  for (uint32_t round = 0; round < 16; ++round) {
    const int64_t length = 1 + static_cast<int64_t>(random() % kLongest);
    SCOPED_TRACE(std::to_string(length) + " tokens");
    const auto prompt = pair.Prompt(length, round);
    const LeaseId lease = pair.Begin(prompt.get(), length + static_cast<int64_t>(random() % 500));
    for (int64_t done = 0; done < length;) {
      done = std::min<int64_t>(length, done + 1 + static_cast<int64_t>(random() % 900));
      pair.sender->GrowTo(lease, done);
      if (random() % 2 == 0) pair.Step();
    }
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(length));
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    ASSERT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
    ASSERT_TRUE(CacheBytes(*pair.decode.caches[lease], length) == CacheBytes(*prompt, length));
    kept.push_back(lease);
    if (kept.size() > 4) {
      const size_t gone = random() % kept.size();
      pair.decode.Free(kept[gone]);
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(gone));
    }
  }
  for (CacheKind kind :
       {CacheKind::kLatentsIndexed, CacheKind::kLatentsDense, CacheKind::kIndexKeys,
        CacheKind::kRingWindows, CacheKind::kCompressorStates}) {
    EXPECT_GE(Digests(pair.decode_metrics, kind, "ok"), 16) << Name(kind);
    EXPECT_EQ(Digests(pair.decode_metrics, kind, "mismatch"), 0) << Name(kind);
  }
}

// A prefill worker that gives a request up, at whatever point, says so: decode does not wait for
// rows that will never come.
TEST(GivingUpTest, DecodeHearsOfItWithinASecond) {
  for (int steps = 0; steps < 30; steps += 3) {
    WorkerPair pair({.prefill_slot_bytes = 4096, .decode_slot_bytes = 4096});
    pair.network.faults.delay = std::chrono::milliseconds(10);
    const auto prompt = pair.Prompt(400, 1);
    const LeaseId lease = pair.Begin(prompt.get(), 400);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.receiver->num_incoming() > 0; }));
    pair.sender->GrowTo(lease, 300);
    for (int i = 0; i < steps; ++i) pair.Step();
    const TimePoint start = pair.clock.Now();
    pair.sender->Forget(lease, "the engine failed");
    ASSERT_TRUE(pair.RunUntil([&] { return pair.decode.abandoned.contains(lease); }));
    EXPECT_LE(pair.clock.Now() - start, std::chrono::seconds(1)) << steps << " steps";
    EXPECT_TRUE(pair.RunUntilIdle());
  }
}

}  // namespace
}  // namespace lodestone

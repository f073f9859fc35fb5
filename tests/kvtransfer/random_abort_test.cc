// Aborts by either side at random moments, leases that expire, links that break.
#include <algorithm>
#include <deque>
#include <random>

#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

// With and without offers whose bytes are on the way before they are granted.
class RandomAbortTest : public testing::TestWithParam<bool> {};

TEST_P(RandomAbortTest, AThousandLeaveBothSidesIdle) {
  const bool early = GetParam();
  WorkerPair pair({.num_slots = early ? 16 : 4, .max_sequences = 512, .early = early});
  if (early) pair.network.closing_takes = std::chrono::milliseconds(500);  // as over NCCL
  std::mt19937 random(2026);
  struct Running {
    LeaseId lease;
    int64_t length = 0;
    int64_t sent = 0;
    bool finished = false;
    bool released = false;  // by decode
    std::unique_ptr<SequenceCache> prompt;
  };
  std::vector<Running> running;
  // Given up before decode heard of them, or adopted unnoticed: their lease expires unless named.
  std::deque<std::pair<TimePoint, LeaseId>> unwatched;
  int aborts = 0;
  int adopted = 0;
  while (aborts < 1000 || !running.empty()) {
    if (aborts < 1000 && running.size() < 8 && random() % 2 == 0) {
      Running next;
      next.length = 1 + static_cast<int64_t>(random() % 500);
      next.prompt = pair.Prompt(next.length, static_cast<uint32_t>(random()));
      next.lease = pair.Begin(next.prompt.get(), next.length);
      running.push_back(std::move(next));
    }
    if (aborts < 1000 && random() % 600 == 0) pair.network.Break(WorkerPair::kAddress);
    for (size_t i = 0; i < running.size();) {
      Running& r = running[i];
      const uint32_t dice = random() % 60;
      bool gone = false;
      if (pair.outcomes.contains(r.lease)) {
        if (pair.outcomes[r.lease].ok() && !r.released) {
          ++adopted;
          EXPECT_EQ(CacheBytes(*pair.decode.caches[r.lease], r.length),
                    CacheBytes(*r.prompt, r.length));
          pair.receiver->Release(r.lease, "finished");
          pair.decode.Free(r.lease);
        }
        gone = true;
      } else if (dice == 0 && aborts < 1000) {
        ++aborts;
        pair.sender->Forget(r.lease, "abort");
        gone = true;
      } else if (dice == 1 && !r.released && aborts < 1000) {
        ++aborts;
        r.released = true;
        pair.receiver->Release(r.lease, "abort");
        pair.decode.Free(r.lease);
      } else if (dice < 40 && !r.finished) {
        r.sent = std::min(r.length, r.sent + static_cast<int64_t>(random() % 200));
        pair.sender->GrowTo(r.lease, r.sent);
        if (r.sent == r.length) {
          pair.sender->Finish(r.lease, WorkerPair::MakeHandoff(r.length));
          r.finished = true;
        }
      }
      if (gone) {
        unwatched.push_back({pair.clock.Now() + std::chrono::seconds(5), r.lease});
        // Prefill's pages are free at once and poisoned: what still reads them would be seen.
        running.erase(running.begin() + static_cast<long>(i));
      } else {
        ++i;
      }
    }
    while (!unwatched.empty() && (running.empty() || unwatched.front().first < pair.clock.Now())) {
      pair.receiver->Release(unwatched.front().second, "expired");
      pair.decode.Free(unwatched.front().second);
      unwatched.pop_front();
    }
    pair.Step();
  }
  EXPECT_GT(adopted, 20);
  ASSERT_TRUE(pair.RunUntilIdle());
  EXPECT_TRUE(pair.decode.caches.empty());
  EXPECT_TRUE(pair.decode.pool->ledger().CheckIdle().ok());
  EXPECT_TRUE(pair.prefill_pool->ledger().CheckIdle().ok());
}

INSTANTIATE_TEST_SUITE_P(All, RandomAbortTest, testing::Bool(), [](const auto& early) {
  return early.param ? "Early" : "Granted";
});

}  // namespace
}  // namespace lodestone

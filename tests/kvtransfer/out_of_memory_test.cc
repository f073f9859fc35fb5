// An allocation fails in the sender or in the receiver: the loop of that worker ends, as its
// process then does, and the other worker is told, gives everything back and is idle.
#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "base/config.h"
#include "base/out_of_memory.h"
#include "tests/kvtransfer/worker_pair.h"
#include "tests/testing/failing_allocations.h"

namespace lodestone {
namespace {

constexpr int64_t kTokens = 300;

// One hand-off, again and again, with one allocation more made by prefill's loop, or else by
// decode's. After a failure, `check` has the pair with that loop ended.
void FailEverywhere(bool in_prefill, const std::function<void(WorkerPair&, LeaseId)>& check) {
  const int64_t stride = GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 1 : 17;
  const auto attempt = [&](auto arm) {
    WorkerPair pair;
    const auto prompt = pair.Prompt(kTokens, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kTokens);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kTokens));
    std::vector<HandoffOutcome> outcomes;
    const auto pump_prefill = [&] { outcomes = pair.sender->Pump(); };
    const auto pump_decode = [&] { pair.receiver->Pump(pair.decode); };
    const auto run = [&]() -> absl::Status {
      for (int turn = 0; turn < 100 && outcomes.empty(); ++turn) {
        in_prefill ? pump_prefill() : pump_decode();
        const UnfailingAllocations other_process;
        in_prefill ? pump_decode() : pump_prefill();
        pair.clock.Advance(std::chrono::milliseconds(5));
      }
      return absl::OkStatus();
    };
    absl::Status loop;
    arm([&] { loop = CatchOutOfMemory("", run); });
    if (loop.ok()) {
      ASSERT_EQ(outcomes.size(), 1u);
      // A block table that cannot grow ends the request, not the loop.
      const absl::Status& status = outcomes[0].status;
      EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "no memory")) << status;
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(loop)) << loop;
      check(pair, lease);
    }
    pair.decode.Free(lease);
    EXPECT_TRUE(pair.decode.pool->ledger().CheckIdle().ok());
  };
  EXPECT_GT(FailEveryAllocation(attempt, stride) * stride, 50);
}

TEST(OutOfMemoryTest, WhenPrefillEndsDecodeGivesEverythingBack) {
  FailEverywhere(true, [](WorkerPair& pair, LeaseId lease) {
    pair.sender.reset();
    pair.pump_sender = false;
    EXPECT_TRUE(pair.RunUntil([&] {
      return pair.receiver->num_links() == 0 && pair.receiver->num_incoming() == 0 &&
             pair.receiver->num_free_slots() == pair.options.num_slots;
    }));
    // Neither: decode had not heard of it, and its lease dies by time.
    EXPECT_LE(pair.decode.adopted.count(lease) + pair.decode.abandoned.count(lease), 1u);
  });
}

TEST(OutOfMemoryTest, WhenDecodeEndsPrefillHearsOfItAndGivesEverythingBack) {
  FailEverywhere(false, [](WorkerPair& pair, LeaseId lease) {
    pair.receiver.reset();
    pair.pump_receiver = false;
    EXPECT_TRUE(pair.RunUntilOutcome(lease));
    EXPECT_TRUE(absl::IsUnavailable(pair.outcomes[lease])) << pair.outcomes[lease];
    EXPECT_EQ(pair.sender->num_leases(), 0);
    EXPECT_TRUE(pair.RunUntil(
        [&] { return pair.sender->num_free_slots() == pair.options.num_slots; }));
  });
}

}  // namespace
}  // namespace lodestone

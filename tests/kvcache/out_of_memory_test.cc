// Whichever allocation fails: the request is refused, and the ledger is as before.
#include <memory>

#include <gtest/gtest.h>

#include "base/out_of_memory.h"
#include "kvcache/cache_pool.h"
#include "tests/kvcache/shapes.h"
#include "tests/testing/failing_allocations.h"

namespace lodestone {
namespace {

MemoryPlan Plan() {
  PlanInput input;
  input.shape = SmallShape();
  input.memory_limit_bytes = int64_t{1} << 28;
  input.max_sequences = 4;
  input.max_context = 4096;
  return PlanMemory(input).value();
}

bool IsAsBefore(const CachePool& pool, const MemorySnapshot& before, MemorySnapshot after) {
  return pool.Stats().used_pages == 0 && pool.Stats().used_slots == 0 &&
         after.num_leases == before.num_leases && after.free_pages == before.free_pages &&
         after.free_slots == before.free_slots && after.free_bytes == before.free_bytes &&
         after.orphan_bytes == 0;
}

TEST(OutOfMemoryTest, ACachePoolIsMadeOrRefused) {
  const MemoryPlan plan = Plan();
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    absl::StatusOr<std::unique_ptr<CachePool>> pool;
    arm([&] { pool = CachePool::Create(plan); });
    EXPECT_TRUE(pool.ok() || absl::IsResourceExhausted(pool.status())) << pool.status();
  });
  EXPECT_GT(failures, kNumCacheKinds - 2);  // its buffers at least; one kind is empty
}

TEST(OutOfMemoryTest, ASequenceIsAdmittedWholeOrNotAtAll) {
  const auto pool = CachePool::Create(Plan()).value();
  const MemorySnapshot before = pool->ledger().Snapshot();
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    absl::StatusOr<std::unique_ptr<SequenceCache>> sequence = absl::UnknownError("");
    arm([&] { sequence = pool->MakeSequenceFor(1000); });
    if (sequence.ok()) return;
    EXPECT_TRUE(absl::IsResourceExhausted(sequence.status())) << sequence.status();
    EXPECT_TRUE(IsAsBefore(*pool, before, pool->ledger().Snapshot()));
  });
  EXPECT_GE(failures, 2);  // the account and the sequence
  EXPECT_TRUE(pool->ledger().CheckIdle().ok());
}

TEST(OutOfMemoryTest, ASequenceUnderALeaseIsMadeOrRefused) {
  const auto pool = CachePool::Create(Plan()).value();
  const LeaseId lease = RandomLeaseId();
  ASSERT_TRUE(pool->ledger().Reserve(lease, ReservationFor(1000)).ok());
  const MemorySnapshot before = pool->ledger().Snapshot();
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    absl::StatusOr<std::unique_ptr<SequenceCache>> sequence = absl::UnknownError("");
    arm([&] { sequence = pool->MakeSequence(lease); });
    if (sequence.ok()) return;
    EXPECT_TRUE(absl::IsResourceExhausted(sequence.status())) << sequence.status();
    EXPECT_TRUE(IsAsBefore(*pool, before, pool->ledger().Snapshot()));
  });
  EXPECT_GE(failures, 1);
  EXPECT_TRUE(pool->ledger().Release(lease).ok());
  EXPECT_TRUE(pool->ledger().CheckIdle().ok());
}

TEST(OutOfMemoryTest, ASequenceGrowsOrStaysAsItWas) {
  const auto pool = CachePool::Create(Plan()).value();
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    const auto sequence = pool->MakeSequenceFor(4096).value();
    const MemorySnapshot before = pool->ledger().Snapshot();
    absl::Status grown;
    arm([&] {
      grown = sequence->Reserve(300);
      if (grown.ok()) grown = sequence->Reserve(4000);
    });
    if (grown.ok()) return;
    EXPECT_TRUE(absl::IsResourceExhausted(grown)) << grown;
    EXPECT_EQ(sequence->pages().size(), 0u);
    EXPECT_EQ(pool->Stats().used_pages, 0);
    EXPECT_EQ(pool->ledger().Snapshot().used.total(), before.used.total());
    EXPECT_TRUE(sequence->Reserve(300).ok()) << "the next try finds everything as it was";
  });
  EXPECT_EQ(failures, 1);  // the table, once for all
  EXPECT_TRUE(pool->ledger().CheckIdle().ok());
}

TEST(OutOfMemoryTest, ALeaseIsReservedOrRefused) {
  const auto pool = CachePool::Create(Plan()).value();
  Ledger& ledger = pool->ledger();
  const LeaseId lease = RandomLeaseId();
  FailEveryAllocation([&](auto arm) {
    absl::Status reserved;
    arm([&] { reserved = ledger.Reserve(lease, ReservationFor(1000)); });
    if (reserved.ok()) {
      EXPECT_TRUE(ledger.Release(lease).ok());
      return;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(reserved)) << reserved;
    EXPECT_TRUE(ledger.CheckIdle().ok()) << ledger.CheckIdle();
    EXPECT_FALSE(ledger.Find(lease).ok());
  });
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

// A refusal that has no memory for its own text is still the refusal.
TEST(OutOfMemoryTest, TheStatusNeedsNoMemory) {
  const FailingAllocation failing(0);
  const absl::Status status = OutOfMemory("for a text that is longer than a small string");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "");
}

}  // namespace
}  // namespace lodestone

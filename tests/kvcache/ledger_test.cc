#include "kvcache/ledger.h"

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvcache/shapes.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

MemoryPlan Plan(int64_t num_slots, int64_t context_pages) {
  PlanInput input;
  input.shape = SmallShape();
  input.memory_limit_bytes = int64_t{1} << 32;
  input.weight_bytes = 1000;
  input.staging_bytes = 200;
  input.max_sequences = num_slots;
  input.max_context = context_pages * kPageTokens;
  return PlanMemory(input).value();
}

void ExpectBalanced(const MemorySnapshot& snapshot) {
  EXPECT_EQ(snapshot.used.total() + snapshot.reserved_bytes + snapshot.free_bytes,
            snapshot.capacity.total());
  EXPECT_GE(snapshot.free_bytes, 0);
  EXPECT_GE(snapshot.reserved_bytes, 0);
  EXPECT_GE(snapshot.orphan_bytes, 0);
}

TEST(LedgerTest, AReservationIsHeldUntilItsLeaseIsReleased) {
  const MemoryPlan plan = Plan(4, 5);  // 20 pages
  Ledger ledger(plan);
  const int64_t idle_free = ledger.Snapshot().free_bytes;
  ASSERT_TRUE(ledger.Reserve(LeaseId(1), {.num_pages = 15}).ok());
  MemorySnapshot snapshot = ledger.Snapshot();
  EXPECT_EQ(snapshot.reserved_bytes,
            15 * plan.bytes_per_page.total() + plan.bytes_per_slot.total());
  EXPECT_EQ(snapshot.free_pages, 5);
  EXPECT_EQ(snapshot.free_slots, 3);
  EXPECT_EQ(ledger.Find(LeaseId(1)).value(), (Reservation{15, 1}));

  const absl::Status refused = ledger.Reserve(LeaseId(2), {.num_pages = 6});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "request needs 6 pages and 1 slots, 5 pages and 3 slots are free of 20 pages and 4 "
            "slots");
  ASSERT_TRUE(ledger.Reserve(LeaseId(2), {.num_pages = 5}).ok());
  ASSERT_TRUE(ledger.Release(LeaseId(1)).ok());
  ASSERT_TRUE(ledger.Release(LeaseId(2)).ok());
  EXPECT_EQ(ledger.Snapshot().free_bytes, idle_free);
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

TEST(LedgerTest, WhatCanNeverFitIsInvalidNotExhausted) {
  Ledger ledger(Plan(4, 5));
  EXPECT_EQ(ledger.Reserve(LeaseId(1), {.num_pages = 21}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.Reserve(LeaseId(1), {.num_pages = -1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ledger.Reserve(kNoLease, {.num_pages = 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

TEST(LedgerTest, ALeaseIsReservedOnceAndReleasedOnce) {
  Ledger ledger(Plan(4, 5));
  ASSERT_TRUE(ledger.Reserve(LeaseId(1), {.num_pages = 2}).ok());
  EXPECT_EQ(ledger.Reserve(LeaseId(1), {.num_pages = 2}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ledger.Snapshot().free_pages, 18);
  ASSERT_TRUE(ledger.Release(LeaseId(1)).ok());
  EXPECT_EQ(ledger.Release(LeaseId(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ledger.Find(LeaseId(1)).status().code(), absl::StatusCode::kNotFound);
}

TEST(LedgerTest, UseBeyondTheReservationIsRefusedAndChangesNothing) {
  Ledger ledger(Plan(4, 5));
  ASSERT_TRUE(ledger.Reserve(LeaseId(1), {.num_pages = 2}).ok());
  ASSERT_TRUE(ledger.Use(LeaseId(1), {2, 1}).ok());
  const absl::Status status = ledger.Use(LeaseId(1), {1, 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("would use 3 pages and 1 slots, reserved are "
                        "2 pages and 1 slots"));
  EXPECT_EQ(ledger.Use(LeaseId(9), {1, 0}).code(), absl::StatusCode::kNotFound);
  ledger.GiveBack(LeaseId(1), {2, 1});
  EXPECT_TRUE(ledger.Release(LeaseId(1)).ok());
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

TEST(LedgerTest, WhatAReleasedLeaseStillUsesIsOrphanUntilItIsGivenBack) {
  const MemoryPlan plan = Plan(4, 5);
  Ledger ledger(plan);
  ASSERT_TRUE(ledger.Reserve(LeaseId(1), {.num_pages = 20}).ok());
  ASSERT_TRUE(ledger.Use(LeaseId(1), {3, 1}).ok());
  EXPECT_EQ(ledger.Snapshot().orphan_bytes, 0);
  ASSERT_TRUE(ledger.Release(LeaseId(1)).ok());
  MemorySnapshot snapshot = ledger.Snapshot();
  EXPECT_EQ(snapshot.orphan_bytes, 3 * plan.bytes_per_page.total() + plan.bytes_per_slot.total());
  EXPECT_EQ(snapshot.free_pages, 17);
  EXPECT_EQ(snapshot.reserved_bytes, 0);
  EXPECT_FALSE(ledger.CheckIdle().ok());
  EXPECT_EQ(ledger.Use(LeaseId(1), {1, 0}).code(), absl::StatusCode::kNotFound);
  ledger.GiveBack(LeaseId(1), {3, 1});
  EXPECT_EQ(ledger.Snapshot().orphan_bytes, 0);
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

TEST(LedgerTest, BytesInUseAreCountedInTheirPools) {
  const MemoryPlan plan = Plan(4, 5);
  Ledger ledger(plan);
  ledger.SetUsed(MemoryPool::kWeights, 900);
  ASSERT_TRUE(ledger.Reserve(LeaseId(1), {.num_pages = 4}).ok());
  ASSERT_TRUE(ledger.Use(LeaseId(1), {2, 1}).ok());
  const MemorySnapshot snapshot = ledger.Snapshot();
  EXPECT_EQ(snapshot.used[MemoryPool::kWeights], 900);
  for (MemoryPool pool :
       {MemoryPool::kLatentsIndexed, MemoryPool::kLatentsDense, MemoryPool::kIndexKeys}) {
    EXPECT_EQ(snapshot.used[pool], 2 * plan.bytes_per_page[pool]) << Name(pool);
  }
  for (MemoryPool pool : {MemoryPool::kRingWindows, MemoryPool::kCompressorStates}) {
    EXPECT_EQ(snapshot.used[pool], plan.bytes_per_slot[pool]) << Name(pool);
  }
  ExpectBalanced(snapshot);
}

TEST(LedgerTest, RandomUseConservesEveryByte) {
  Ledger ledger(Plan(6, 8));
  struct Lease {
    Reservation reserved, used;
    bool released = false;
  };
  std::map<uint64_t, Lease> model;
  std::mt19937 random(11);
  for (int step = 0; step < 100'000; ++step) {
    const uint64_t id = 1 + random() % 12;
    const LeaseId lease(id);
    const auto found = model.find(id);
    switch (random() % 4) {
      case 0: {
        const Reservation wanted{static_cast<int64_t>(random() % 12), 1};
        int64_t pages = 48, slots = 6;
        for (const auto& [other, l] : model) {
          pages -= l.reserved.num_pages;
          slots -= l.reserved.num_slots;
        }
        const bool fits = wanted.num_pages <= pages && slots >= 1;
        ASSERT_EQ(ledger.Reserve(lease, wanted).ok(), fits && found == model.end());
        if (fits && found == model.end()) model[id] = {wanted, {0, 0}};
        break;
      }
      case 1: {
        const bool live = found != model.end() && !found->second.released;
        ASSERT_EQ(ledger.Release(lease).ok(), live);
        if (!live) break;
        found->second.released = true;
        found->second.reserved = found->second.used;
        if (found->second.used == Reservation{0, 0}) model.erase(found);
        break;
      }
      case 2: {
        const Reservation more{static_cast<int64_t>(random() % 4),
                               static_cast<int64_t>(random() % 2)};
        const bool fits =
            found != model.end() && !found->second.released &&
            found->second.used.num_pages + more.num_pages <= found->second.reserved.num_pages &&
            found->second.used.num_slots + more.num_slots <= found->second.reserved.num_slots;
        ASSERT_EQ(ledger.Use(lease, more).ok(), fits);
        if (!fits) break;
        found->second.used.num_pages += more.num_pages;
        found->second.used.num_slots += more.num_slots;
        break;
      }
      default: {
        if (found == model.end()) break;
        const Reservation used = found->second.used;
        const Reservation back{used.num_pages - used.num_pages / 2, used.num_slots};
        ledger.GiveBack(lease, back);
        found->second.used = {used.num_pages / 2, 0};
        if (!found->second.released) break;
        found->second.reserved = found->second.used;
        if (found->second.used == Reservation{0, 0}) model.erase(found);
      }
    }
    const MemorySnapshot snapshot = ledger.Snapshot();
    ASSERT_NO_FATAL_FAILURE(ExpectBalanced(snapshot));
    int64_t pages = 48;
    for (const auto& [other, l] : model) pages -= l.reserved.num_pages;
    ASSERT_EQ(snapshot.free_pages, pages);
  }
  for (const auto& [id, lease] : model) {
    ledger.GiveBack(LeaseId(id), lease.used);
    if (!lease.released) {
      ASSERT_TRUE(ledger.Release(LeaseId(id)).ok());
    }
  }
  EXPECT_TRUE(ledger.CheckIdle().ok()) << ledger.CheckIdle();
}

TEST(LedgerTest, ThreadsNeverReserveMoreThanThereIs) {
  Ledger ledger(Plan(8, 4));  // 32 pages
  std::vector<std::thread> threads;
  for (uint64_t worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&ledger, worker] {
      for (uint64_t i = 1; i <= 3000; ++i) {
        const LeaseId lease(worker << 32 | i);
        if (!ledger.Reserve(lease, {.num_pages = 15}).ok()) continue;
        EXPECT_TRUE(ledger.Use(lease, {7, 1}).ok());
        ledger.GiveBack(lease, {7, 1});
        EXPECT_TRUE(ledger.Release(lease).ok());
      }
    });
  }
  for (int i = 0; i < 2000; ++i) ExpectBalanced(ledger.Snapshot());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(ledger.CheckIdle().ok()) << ledger.CheckIdle();
}

}  // namespace
}  // namespace lodestone

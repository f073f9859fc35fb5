#include "kvcache/cache_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvcache/shapes.h"

namespace lodestone {
namespace {

MemoryPlan Plan(const CacheShape& shape, int64_t num_slots, int64_t context_pages) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{1} << 34;
  input.weight_bytes = 12345;
  input.scratch_bytes = 777;
  input.max_sequences = num_slots;
  input.max_context = context_pages * kPageTokens;
  return PlanMemory(input).value();
}

std::unique_ptr<CachePool> Pool(int64_t num_slots = 3, int64_t context_pages = 4,
                                FreedPages freed = FreedPages::kPoison) {
  return CachePool::Create(Plan(SmallShape(), num_slots, context_pages), freed).value();
}

TEST(CachePoolTest, PlanEqualsTheRunningPoolByteForByte) {
  for (const CacheShape& shape : SmallShapesOfEveryFormat()) {
    const MemoryPlan plan = Plan(shape, 3, 5);
    const std::unique_ptr<CachePool> pool = CachePool::Create(plan).value();
    PoolBytes expected = plan.capacity;
    expected[MemoryPool::kWeights] = 0;
    expected[MemoryPool::kScratch] = 0;
    EXPECT_EQ(pool->AllocatedBytes(), expected);
    EXPECT_EQ(pool->ledger().Snapshot().capacity, plan.capacity);

    // Filled to the last page, everything that was planned for the cache is in use, no byte more.
    std::vector<std::unique_ptr<SequenceCache>> sequences;
    for (int i = 0; i < 3; ++i) {
      sequences.push_back(pool->MakeSequenceFor(5 * kPageTokens).value());
      ASSERT_TRUE(sequences.back()->Reserve(5 * kPageTokens).ok());
    }
    EXPECT_EQ(pool->ledger().Snapshot().used, expected);
    EXPECT_EQ(pool->ledger().Snapshot().reserved_bytes, 0);
  }
}

TEST(CachePoolTest, ViewsCoverTheWholePoolOfTheirKind) {
  const std::unique_ptr<CachePool> pool = Pool(3, 4);
  ASSERT_EQ(pool->layers().size(), 4);
  const LayerCacheView& window = pool->layers()[0];
  EXPECT_EQ(window.ring.payload.ShapeString(), "U8[3, 128, 256]");
  EXPECT_TRUE(window.entries.payload.empty());
  EXPECT_TRUE(window.state.kv.empty());
  const LayerCacheView& indexed = pool->layers()[1];
  EXPECT_EQ(indexed.entries.payload.ShapeString(), "U8[12, 64, 256]");
  EXPECT_EQ(indexed.index_keys.payload.ShapeString(), "U8[12, 64, 64]");
  EXPECT_EQ(indexed.state.kv.ShapeString(), "F32[3, 8, 256]");
  EXPECT_EQ(indexed.index_state.score.ShapeString(), "F32[3, 8, 64]");
  const LayerCacheView& dense = pool->layers()[2];
  EXPECT_EQ(dense.entries.payload.ShapeString(), "U8[12, 2, 256]");
  EXPECT_EQ(dense.state.score.ShapeString(), "F32[3, 128, 128]");
  EXPECT_TRUE(dense.index_keys.payload.empty());
}

void ExpectFreshState(const CompressorStateView& state, int64_t slot) {
  const int64_t floats = state.kv.shape[1] * state.kv.shape[2];
  for (int64_t i = 0; i < floats; ++i) {
    ASSERT_EQ(state.kv.row<float>(slot)[i], 0.0f);
    ASSERT_EQ(state.score.row<float>(slot)[i], -std::numeric_limits<float>::infinity());
  }
}

TEST(CachePoolTest, ASlotStartsFreshWhateverWasInItBefore) {
  const std::unique_ptr<CachePool> pool = Pool(1);
  for (int use = 0; use < 2; ++use) {
    const auto sequence = pool->MakeSequenceFor(kPageTokens).value();
    for (int layer : {1, 2, 3}) {
      const LayerCacheView& view = pool->layers()[layer];
      ASSERT_NO_FATAL_FAILURE(ExpectFreshState(view.state, sequence->slot()));
      if (layer != 2) {
        ASSERT_NO_FATAL_FAILURE(ExpectFreshState(view.index_state, sequence->slot()));
      }
      std::fill_n(view.state.kv.row<float>(sequence->slot()), view.state.kv.shape[2], 3.0f);
      std::fill_n(view.state.score.row<float>(sequence->slot()), view.state.kv.shape[2], 3.0f);
    }
  }
}

TEST(CachePoolTest, FreedPagesReadAsNanUnderPoison) {
  const std::unique_ptr<CachePool> pool = Pool();
  PageId page;
  {
    const auto sequence = pool->MakeSequenceFor(kPageTokens).value();
    ASSERT_TRUE(sequence->Reserve(1).ok());
    page = sequence->pages()[0];
    for (const RowRun& run : sequence->AppendRuns(0, kPageTokens)) {
      for (int part = 0; part < run.num_parts; ++part) {
        std::memset(run.At(part, 0), 1, run.num_rows * run.part_stride[part]);
      }
    }
  }
  for (int layer : {1, 2, 3}) {
    const TensorView& rows = pool->layers()[layer].entries.payload;
    const auto* bytes = rows.row<uint8_t>(page.value());
    EXPECT_TRUE(std::all_of(bytes, bytes + rows.strides[0], [](uint8_t b) { return b == 0xff; }));
  }
}

TEST(CachePoolTest, EverythingIsGivenBackWhenSequencesEnd) {
  const std::unique_ptr<CachePool> pool = Pool();
  {
    const auto a = pool->MakeSequenceFor(3 * kPageTokens).value();
    const auto b = pool->MakeSequenceFor(1).value();
    ASSERT_TRUE(a->Reserve(2 * kPageTokens + 1).ok());
    EXPECT_NE(a->slot(), b->slot());
    EXPECT_EQ(pool->Stats().used_pages, 3);
    EXPECT_EQ(pool->Stats().used_slots, 2);
    EXPECT_FALSE(pool->ledger().CheckIdle().ok());
  }
  EXPECT_EQ(pool->Stats().used_pages, 0);
  EXPECT_EQ(pool->Stats().used_slots, 0);
  EXPECT_EQ(pool->Stats().high_water_pages, 3);
  EXPECT_TRUE(pool->ledger().CheckIdle().ok());
}

TEST(CachePoolTest, AdmissionIsWorstCase) {
  const std::unique_ptr<CachePool> pool = Pool(3, 4);  // 12 pages
  const auto a = pool->MakeSequenceFor(4 * kPageTokens).value();
  const auto b = pool->MakeSequenceFor(4 * kPageTokens).value();
  const auto c = pool->MakeSequenceFor(2 * kPageTokens).value();
  EXPECT_EQ(pool->Stats().used_pages, 0);  // promised, not taken
  EXPECT_EQ(pool->MakeSequenceFor(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->MakeSequenceFor(13 * kPageTokens).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status beyond = c->Reserve(2 * kPageTokens + 1);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(c->pages().empty());
  EXPECT_TRUE(c->Reserve(2 * kPageTokens).ok());
}

TEST(CachePoolTest, GrowthThatFailsIsNotCountedAsUse) {
  const std::unique_ptr<CachePool> pool = Pool(3, 4);
  const auto sequence = pool->MakeSequenceFor(2 * kPageTokens).value();
  std::vector<PageId> stolen;  // behind the ledger's back
  ASSERT_TRUE(pool->page_allocator().Take(11, stolen).ok());
  const MemorySnapshot before = pool->ledger().Snapshot();
  EXPECT_EQ(sequence->Reserve(2 * kPageTokens).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(pool->ledger().Snapshot().used, before.used);
  EXPECT_TRUE(sequence->pages().empty());
  pool->page_allocator().GiveBack(stolen);
  EXPECT_TRUE(sequence->Reserve(2 * kPageTokens).ok());
}

TEST(CachePoolTest, ALeaseCarriesOneSequenceAndOutlivesItsRelease) {
  const std::unique_ptr<CachePool> pool = Pool();
  Ledger& ledger = pool->ledger();
  const LeaseId lease(77);
  EXPECT_EQ(pool->MakeSequence(lease).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(ledger.Reserve(lease, ReservationFor(300)).ok());
  auto sequence = pool->MakeSequence(lease).value();
  EXPECT_EQ(sequence->max_tokens(), 2 * kPageTokens);
  EXPECT_EQ(pool->MakeSequence(lease).status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(sequence->Reserve(1).ok());
  ASSERT_TRUE(ledger.Release(lease).ok());
  EXPECT_EQ(ledger.Snapshot().orphan_bytes,
            pool->plan().bytes_per_page.total() + pool->plan().bytes_per_slot.total());
  EXPECT_EQ(sequence->Reserve(300).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sequence->pages().size(), 1);
  sequence.reset();
  EXPECT_EQ(ledger.Snapshot().orphan_bytes, 0);
  EXPECT_TRUE(ledger.CheckIdle().ok());
}

TEST(CachePoolTest, RandomLivesOfSequencesEndIdle) {
  const std::unique_ptr<CachePool> pool = Pool(8, 4, FreedPages::kKeep);
  std::mt19937 random(5);
  std::vector<std::unique_ptr<SequenceCache>> live;
  for (int step = 0; step < 20'000; ++step) {
    const int action = static_cast<int>(random() % 4);
    if (action == 0) {
      auto made = pool->MakeSequenceFor(1 + random() % (6 * kPageTokens));
      if (made.ok()) live.push_back(*std::move(made));
    } else if (!live.empty() && action == 1) {
      live.erase(live.begin() + static_cast<int64_t>(random() % live.size()));
    } else if (!live.empty()) {
      SequenceCache& sequence = *live[random() % live.size()];
      // Within its reservation a sequence always gets its pages.
      ASSERT_TRUE(sequence.Reserve(random() % (sequence.max_tokens() + 1)).ok());
    }
    std::vector<bool> seen(pool->plan().num_pages);
    for (const auto& sequence : live) {
      for (PageId page : sequence->pages()) {
        ASSERT_FALSE(seen[page.value()]) << "page " << page << " has two owners";
        seen[page.value()] = true;
      }
    }
  }
  live.clear();
  EXPECT_TRUE(pool->ledger().CheckIdle().ok());
}

TEST(CachePoolTest, MemoryThatTheSystemLacksIsRefused) {
  MemoryPlan plan = Plan(SmallShape(), 1, 1);
  plan.capacity[MemoryPool::kIndexKeys] = int64_t{1} << 60;
  const absl::Status status = CachePool::Create(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cache pool index_keys"));
}

}  // namespace
}  // namespace lodestone

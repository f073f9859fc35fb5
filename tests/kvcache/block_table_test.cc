#include "kvcache/block_table.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/cache_shape.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

TEST(PageAllocatorTest, RandomTakesAndReturnsKeepEveryPageOnce) {
  constexpr int64_t kPages = 97;
  PageAllocator allocator(kPages);
  std::mt19937 random(7);
  std::vector<std::vector<PageId>> owners(12);
  std::set<PageId> taken;
  for (int step = 0; step < 100'000; ++step) {
    std::vector<PageId>& owner = owners[random() % owners.size()];
    if (!owner.empty() && random() % 3 == 0) {
      allocator.GiveBack(owner);
      for (PageId page : owner) taken.erase(page);
      owner.clear();
      continue;
    }
    const int64_t count = random() % 9;
    const size_t before = owner.size();
    const bool fits = count <= allocator.num_free();
    ASSERT_EQ(allocator.Take(count, owner).ok(), fits);
    ASSERT_EQ(owner.size(), before + (fits ? count : 0));
    for (size_t i = before; i < owner.size(); ++i) {
      ASSERT_TRUE(taken.insert(owner[i]).second) << "page " << owner[i] << " has two owners";
    }
    ASSERT_EQ(allocator.num_used(), static_cast<int64_t>(taken.size()));
  }
  for (const auto& owner : owners) allocator.GiveBack(owner);
  EXPECT_EQ(allocator.num_free(), kPages);
  EXPECT_EQ(allocator.num_pages(), kPages);
}

TEST(PageAllocatorTest, RefusalNamesBothNumbers) {
  PageAllocator allocator(3);
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Take(1, pages).ok());
  const absl::Status status = allocator.Take(4, pages);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "4 pages are needed, 2 of 3 are free");
  EXPECT_EQ(pages.size(), 1);
  EXPECT_EQ(allocator.high_water(), 1);
  allocator.GiveBack(pages);
}

TEST(PageAllocatorDeathTest, APageGivenBackTwiceEndsTheProcess) {
  PageAllocator allocator(2);
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Take(1, pages).ok());
  allocator.GiveBack(pages);
  EXPECT_DEATH(allocator.GiveBack(pages), "given back twice");
}

TEST(PageAllocatorTest, ReportsEveryPageGivenBack) {
  std::vector<PageId> freed;
  PageAllocator allocator(4, [&](PageId page) { freed.push_back(page); });
  std::vector<PageId> pages;
  ASSERT_TRUE(allocator.Take(3, pages).ok());
  allocator.GiveBack(pages);
  EXPECT_THAT(freed, ::testing::UnorderedElementsAreArray(pages));
}

TEST(BlockTableTest, ReserveGrowsByWholePagesAndNeverShrinks) {
  PageAllocator allocator(8);
  BlockTable table(&allocator);
  ASSERT_TRUE(table.Reserve(0, 90).ok());
  EXPECT_EQ(table.num_pages(), 0);
  ASSERT_TRUE(table.Reserve(1, 90).ok());
  EXPECT_EQ(table.num_pages(), 1);
  ASSERT_TRUE(table.Reserve(kPageTokens, 90).ok());
  EXPECT_EQ(table.num_pages(), 1);
  ASSERT_TRUE(table.Reserve(kPageTokens + 1, 90).ok());
  EXPECT_EQ(table.num_pages(), 2);
  const std::vector<PageId> pages(table.pages().begin(), table.pages().end());
  ASSERT_TRUE(table.Reserve(5, 90).ok());
  EXPECT_EQ(std::vector<PageId>(table.pages().begin(), table.pages().end()), pages);
}

TEST(BlockTableTest, ReserveLeavesTableUnchangedWhenPagesRunOut) {
  PageAllocator allocator(3);
  BlockTable table(&allocator);
  ASSERT_TRUE(table.Reserve(2 * kPageTokens, 90).ok());
  const std::vector<PageId> pages(table.pages().begin(), table.pages().end());
  const absl::Status status = table.Reserve(4 * kPageTokens, 90);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 pages are needed, 1 of 3 are free"));
  EXPECT_EQ(std::vector<PageId>(table.pages().begin(), table.pages().end()), pages);
  EXPECT_EQ(allocator.num_free(), 1);
}

// Runs of rows point at them while the sequence grows.
TEST(BlockTableTest, PagesStayWhereTheyAreWhileTheTableGrows) {
  PageAllocator allocator(100);
  BlockTable table(&allocator);
  ASSERT_TRUE(table.Reserve(1, 90).ok());
  const PageId* first = table.pages().data();
  for (int64_t pages = 2; pages <= 90; ++pages) {
    ASSERT_TRUE(table.Reserve(pages * kPageTokens, 90).ok());
    ASSERT_EQ(table.pages().data(), first) << pages << " pages";
  }
  EXPECT_EQ(table.Reserve(91 * kPageTokens, 90).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(table.num_pages(), 90);
}

TEST(BlockTableTest, PagesAreGivenBackOnDestruction) {
  PageAllocator allocator(3);
  {
    BlockTable table(&allocator);
    ASSERT_TRUE(table.Reserve(3 * kPageTokens, 90).ok());
    EXPECT_EQ(allocator.num_free(), 0);
  }
  EXPECT_EQ(allocator.num_free(), 3);
  EXPECT_EQ(allocator.high_water(), 3);
}

}  // namespace
}  // namespace lodestone

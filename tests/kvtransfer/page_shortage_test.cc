#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

constexpr int64_t kPages = 6;
constexpr int64_t kLength = kPages * kPageTokens - 100;

// The decode worker runs out of pages at the n-th that a hand-off takes, for every n, although the
// ledger promised them all: a bug elsewhere must not leave half of a request behind, on either
// side.
TEST(PageShortageTest, AtEveryPageTheHandoffEndsWhole) {
  for (int64_t left = 0; left <= kPages; ++left) {
    SCOPED_TRACE(std::to_string(left) + " pages are left");
    WorkerPair pair;
    PageAllocator& pages = pair.decode.pool->page_allocator();
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    std::vector<PageId> taken;
    ASSERT_TRUE(pages.Take(pair.decode.pool->plan().num_pages - left, taken).ok());
    for (int64_t done = 300; done < kLength; done += 300) {
      pair.sender->GrowTo(lease, done);
      for (int i = 0; i < 3; ++i) pair.Step();
    }
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    EXPECT_EQ(pair.outcomes[lease].ok(), left == kPages) << pair.outcomes[lease];
    EXPECT_EQ(pair.decode.adopted.contains(lease), left == kPages);
    EXPECT_EQ(pair.decode.abandoned.contains(lease), left < kPages);
    ASSERT_TRUE(pair.RunUntilIdle());

    // Nothing of it is left, and the next request, which finds its pages, is handed over.
    pages.GiveBack(taken);
    pair.decode.Free(lease);
    EXPECT_TRUE(pair.decode.pool->ledger().CheckIdle().ok());
    EXPECT_EQ(pair.decode.pool->Stats().used_pages, 0);
    const LeaseId next = pair.Begin(prompt.get(), kLength);
    pair.sender->Finish(next, WorkerPair::MakeHandoff(kLength));
    ASSERT_TRUE(pair.RunUntilOutcome(next));
    EXPECT_TRUE(pair.outcomes[next].ok()) << pair.outcomes[next];
    EXPECT_TRUE(CacheBytes(*pair.decode.caches[next], kLength) == CacheBytes(*prompt, kLength));
  }
}

}  // namespace
}  // namespace lodestone

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/ids.h"
#include "tests/testing/long_tests.h"

namespace lodestone {
namespace {

// Two requests with one id would share what is kept under it. No id comes from a client's field, so
// all depends on this generator, from every thread.
TEST(UniqueIdsTest, NoTwoAreEqual) {
  constexpr int kThreads = 4;
  const int per_thread = (LongTests() ? 10'000'000 : 200'000) / kThreads;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> made(kThreads);
  std::vector<std::thread> threads;
  for (auto& ids : made) {
    threads.emplace_back([&ids, per_thread] {
      for (int i = 0; i < per_thread; ++i) {
        const RequestId id = RequestId::Random();
        ids.emplace_back(id.high(), id.low());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::pair<uint64_t, uint64_t>> all;
  for (const auto& ids : made) all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  EXPECT_TRUE(std::adjacent_find(all.begin(), all.end()) == all.end());
}

}  // namespace
}  // namespace lodestone

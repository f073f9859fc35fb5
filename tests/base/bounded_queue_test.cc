#include "base/bounded_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(BoundedQueueTest, KeepsOrderAndRefusesWhatDoesNotFit) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, RefusedElementStaysWithTheCaller) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE(queue.PushUntil(std::move(second), steady_clock::now()));
  EXPECT_NE(second, nullptr);
}

TEST(BoundedQueueTest, WaitsEndAtTheirDeadline) {
  BoundedQueue<int> queue(1);
  const auto start = steady_clock::now();
  EXPECT_EQ(queue.PopUntil(start + milliseconds(20)), std::nullopt);
  EXPECT_GE(steady_clock::now() - start, milliseconds(20));
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_FALSE(queue.PushUntil(2, steady_clock::now() + milliseconds(5)));
}

TEST(BoundedQueueTest, CloseDrainsThenEndsAtOnce) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.TryPush(2));
  const auto far = steady_clock::now() + seconds(60);
  EXPECT_EQ(queue.PopUntil(far), 1);
  EXPECT_EQ(queue.PopUntil(far), std::nullopt);
}

TEST(BoundedQueueTest, CloseWakesWaiters) {
  BoundedQueue<int> empty(1);
  BoundedQueue<int> full(1);
  EXPECT_TRUE(full.TryPush(1));
  const auto far = steady_clock::now() + seconds(60);
  std::thread popper([&] { EXPECT_EQ(empty.PopUntil(far), std::nullopt); });
  std::thread pusher([&] { EXPECT_FALSE(full.PushUntil(2, far)); });
  empty.Close();
  full.Close();
  popper.join();
  pusher.join();
  EXPECT_LT(steady_clock::now(), far);
}

TEST(BoundedQueueTest, EveryElementArrivesOnceBetweenManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(8);
  std::vector<std::atomic<int>> seen(kThreads * kEach);
  const auto far = steady_clock::now() + seconds(60);
  std::vector<std::thread> producers, consumers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(queue.PushUntil(t * kEach + i, far));
    });
    consumers.emplace_back([&] {
      while (const std::optional<int> value = queue.PopUntil(far)) ++seen[*value];
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  for (const std::atomic<int>& count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace lodestone

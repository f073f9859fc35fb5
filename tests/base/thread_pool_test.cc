#include "base/thread_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> counts(static_cast<size_t>(num_tasks), 0);
    pool.ParallelFor(num_tasks, [&](int64_t task) { ++counts[static_cast<size_t>(task)]; });
    for (int count : counts) EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, ManyShortJobsInARowSeeEachOthersResults) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(5, 0);
  constexpr int64_t kJobs = 20000;
  for (int64_t job = 0; job < kJobs; ++job) {
    // Each task reads what another thread may have written in the job before.
    std::vector<int64_t> next(values.size());
    pool.ParallelFor(static_cast<int64_t>(values.size()), [&](int64_t task) {
      const size_t neighbour = (static_cast<size_t>(task) + 1) % values.size();
      next[static_cast<size_t>(task)] = values[neighbour] + 1;
    });
    values = next;
  }
  for (int64_t value : values) EXPECT_EQ(value, kJobs);
}

TEST_P(ThreadPoolTest, NestedCallsRunInTheCallingTask) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner_tasks{0};
  pool.ParallelFor(8, [&](int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.ParallelFor(8, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      ++inner_tasks;
    });
  });
  EXPECT_EQ(inner_tasks, 64);
}

TEST_P(ThreadPoolTest, CallsFromSeveralThreadsAllComplete) {
  ThreadPool pool(GetParam());
  std::atomic<int> tasks{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      for (int job = 0; job < 500; ++job) pool.ParallelFor(4, [&](int64_t) { ++tasks; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(tasks, 3 * 500 * 4);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST(ThreadPoolWakeTest, SleepingThreadsTakePart) {
  ThreadPool pool(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // beyond the spin: they sleep now
  // Neither task can end before both have started, so two threads must run them.
  std::atomic<int> started{0};
  pool.ParallelFor(2, [&](int64_t) {
    ++started;
    while (started < 2) std::this_thread::yield();
  });
  EXPECT_EQ(started, 2);
}

TEST(ThreadPoolWakeTest, IdlePoolsEndAtOnce) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace lodestone

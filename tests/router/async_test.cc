#include "router/async.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// Ends only when `stop` is cancelled.
Task<void> RunUntilStopped(asio::io_context& loop, CancelSource& stop) {
  Event stopped(loop);
  const CancelSource::Registration on_stop =
      stop.OnCancel([&stopped](const absl::Status&) { stopped.Notify(); });
  const TimePoint test_end = RealClock()->Now() + std::chrono::seconds(20);
  while (!stop.cancelled()) co_await stopped.WaitUntil(test_end);
}

TEST(TaskGroupTest, TasksThatAreLateAreToldSoAndWaitedFor) {
  asio::io_context loop;
  TaskGroup group(loop);
  CancelSource stop;
  int times_late = 0;
  const TimePoint due = RealClock()->Now() + milliseconds(50);
  group.Spawn(RunUntilStopped(loop, stop));
  const auto wait = [&]() -> Task<void> {
    const std::function<void()> on_late = [&] {
      EXPECT_GE(RealClock()->Now(), due);
      ++times_late;
      stop.Cancel(absl::CancelledError("late"));
    };
    co_await group.WaitForEnd(due, on_late);
    EXPECT_EQ(group.running(), 0);
  };
  Spawn(loop, wait());
  loop.run();
  EXPECT_EQ(times_late, 1);
}

}  // namespace
}  // namespace lodestone

#include "router/event_loop.h"

#include <pthread.h>
#include <time.h>

#include <future>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

class EventLoopTest : public testing::TestWithParam<milliseconds> {
 protected:
  ~EventLoopTest() override {
    loop_.stop();
    thread_.join();
  }
  // On the loop's thread.
  void Do() {
    std::promise<void> done;
    boost::asio::post(loop_, [&] { done.set_value(); });
    done.get_future().wait();
  }
  nanoseconds ProcessorTime() {
    clockid_t clock{};
    EXPECT_EQ(pthread_getcpuclockid(thread_.native_handle(), &clock), 0);
    timespec time{};
    EXPECT_EQ(clock_gettime(clock, &time), 0);
    return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
  }

  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_ =
      boost::asio::make_work_guard(loop_);
  std::thread thread_{[this] { RunEventLoop(loop_, GetParam()); }};
};

TEST_P(EventLoopTest, DoesWhatIsPostedAndSleepsBetween) {
  for (int i = 0; i < 100; ++i) Do();
  const nanoseconds before = ProcessorTime();
  std::this_thread::sleep_for(milliseconds(200));
  Do();  // it has slept, and wakes
  const nanoseconds used = ProcessorTime() - before;
  // Twice: after the work before, and after this one.
  EXPECT_LT(used, 2 * GetParam() + milliseconds(20)) << used.count() << " ns of 200 ms";
}

INSTANTIATE_TEST_SUITE_P(All, EventLoopTest, testing::Values(milliseconds(0), milliseconds(1)));

TEST(SpinTimeTest, IsZeroWithoutProcessorsToSpare) {
  for (int processors : {1, 2, 7}) EXPECT_EQ(SpinTime(processors).count(), 0) << processors;
  for (int processors : {8, 192}) EXPECT_EQ(SpinTime(processors), milliseconds(1)) << processors;
}

}  // namespace
}  // namespace lodestone

#include "base/waker.h"

#include <gtest/gtest.h>

#include <thread>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::steady_clock;

TEST(WakerTest, ARingBeforeTheWaitIsNotLost) {
  Waker waker;
  waker.Wake();
  waker.Wake();
  const TimePoint start = steady_clock::now();
  waker.WaitUntil(start + minutes(1));
  EXPECT_LT(steady_clock::now() - start, minutes(1));
  // Both rings were for that one look.
  waker.WaitUntil(steady_clock::now() + milliseconds(5));
  EXPECT_GE(steady_clock::now() - start, milliseconds(5));
}

TEST(WakerTest, ARingEndsTheWait) {
  Waker waker;
  const TimePoint start = steady_clock::now();
  std::thread other([&waker] { waker.Wake(); });
  waker.WaitUntil(start + minutes(1));
  EXPECT_LT(steady_clock::now() - start, minutes(1));
  other.join();
}

}  // namespace
}  // namespace lodestone

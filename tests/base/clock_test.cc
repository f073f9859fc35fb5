#include "base/clock.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(FakeClockTest, MovesOnlyWhenAdvanced) {
  FakeClock clock;
  const TimePoint start = clock.Now();
  const WallTime wall_start = clock.WallNow();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(milliseconds(1500));
  EXPECT_EQ(clock.Now() - start, milliseconds(1500));
  EXPECT_EQ(clock.WallNow() - wall_start, milliseconds(1500));
}

TEST(RealClockTest, IsMonotonicAndOfThisCentury) {
  const TimePoint before = RealClock()->Now();
  EXPECT_LE(before, RealClock()->Now());
  EXPECT_GT(RealClock()->WallNow().time_since_epoch(), seconds(1600000000));
}

}  // namespace
}  // namespace lodestone

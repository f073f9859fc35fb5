#include "base/failpoint.h"

#include <chrono>
#include <csignal>

#include <gtest/gtest.h>

#include "base/status_macros.h"

namespace lodestone {
namespace {

class FailpointTest : public testing::Test {
 protected:
  ~FailpointTest() override { failpoint::DisarmAll(); }
};

TEST_F(FailpointTest, DoesNothingUntilArmed) { EXPECT_TRUE(failpoint::Hit("a").ok()); }

TEST_F(FailpointTest, ReturnsTheArmedErrorUntilDisarmed) {
  ASSERT_TRUE(failpoint::Arm("a", "error(DATA_LOSS)").ok());
  EXPECT_EQ(failpoint::Hit("a").code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(failpoint::Hit("b").ok());
  EXPECT_EQ(failpoint::NumHits("a"), 1);
  failpoint::DisarmAll();
  EXPECT_TRUE(failpoint::Hit("a").ok());
}

TEST_F(FailpointTest, CountLimitsTheHits) {
  ASSERT_TRUE(failpoint::Arm("a", "2*error(UNAVAILABLE)").ok());
  EXPECT_FALSE(failpoint::Hit("a").ok());
  EXPECT_FALSE(failpoint::Hit("a").ok());
  EXPECT_TRUE(failpoint::Hit("a").ok());
  EXPECT_EQ(failpoint::NumHits("a"), 2);
}

TEST_F(FailpointTest, TheFirstHitsMayPass) {
  ASSERT_TRUE(failpoint::Arm("a", "2+1*error(UNAVAILABLE)").ok());
  EXPECT_TRUE(failpoint::Hit("a").ok());
  EXPECT_TRUE(failpoint::Hit("a").ok());
  EXPECT_EQ(failpoint::NumHits("a"), 0);
  EXPECT_FALSE(failpoint::Hit("a").ok());
  EXPECT_TRUE(failpoint::Hit("a").ok());
  EXPECT_EQ(failpoint::NumHits("a"), 1);
}

TEST_F(FailpointTest, DelaySleeps) {
  ASSERT_TRUE(failpoint::Arm("a", "delay(20ms)").ok());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(failpoint::Hit("a").ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
}

TEST_F(FailpointTest, CrashKillsTheProcess) {
  ASSERT_TRUE(failpoint::Arm("a", "crash").ok());
  EXPECT_EXIT((void)failpoint::Hit("a"), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailpointTest, ListArmsAllOrNothing) {
  EXPECT_FALSE(failpoint::ArmList("a=error(UNAVAILABLE);b=explode").ok());
  EXPECT_TRUE(failpoint::Hit("a").ok());
  ASSERT_TRUE(failpoint::ArmList("a=error(UNAVAILABLE);b=1*error(ABORTED);").ok());
  EXPECT_FALSE(failpoint::Hit("a").ok());
  EXPECT_EQ(failpoint::Hit("b").code(), absl::StatusCode::kAborted);
}

TEST_F(FailpointTest, RefusesWhatItCannotParse) {
  for (const char* list : {"a", "=crash", "a=", "a=error", "a=error()", "a=error(NO_SUCH)",
                           "a=delay(5)", "a=0*crash", "a=x*crash", "a=crash(1)"}) {
    EXPECT_EQ(failpoint::ArmList(list).code(), absl::StatusCode::kInvalidArgument) << list;
  }
}

absl::Status Step() {
  RETURN_IF_ERROR(FAILPOINT("step"));
  return absl::OkStatus();
}

TEST_F(FailpointTest, MacroActsOnlyInBuildsThatHaveFailpoints) {
  ASSERT_TRUE(failpoint::Arm("step", "error(INTERNAL)").ok());
  EXPECT_EQ(Step().ok(), !kFailpointsEnabled);
}

}  // namespace
}  // namespace lodestone

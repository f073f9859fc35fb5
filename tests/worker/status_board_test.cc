#include "worker/status_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class StatusBoardTest : public testing::Test {
 protected:
  FakeClock clock_;
  StatusBoard board_{&clock_};
};

TEST_F(StatusBoardTest, ALoopThatDoesNotTurnIsUnhealthyUntilItTurnsAgain) {
  board_.Set({.state = LoopState::kReady, .running_requests = 3});
  clock_.Advance(kLoopHangs);
  EXPECT_EQ(board_.Get().state, LoopState::kReady);
  clock_.Advance(milliseconds(2500));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
  EXPECT_THAT(board_.Get().reason, HasSubstr("has not turned for 12 s"));
  EXPECT_EQ(board_.Get().running_requests, 3);
  board_.Set({.state = LoopState::kReady});
  EXPECT_EQ(board_.Get().state, LoopState::kReady);
  EXPECT_EQ(board_.Get().reason, "");
}

TEST_F(StatusBoardTest, LoadingMayTakeAsLongAsItTakes) {
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(board_.Get().state, LoopState::kLoading);
}

TEST_F(StatusBoardTest, AWaitForAnotherStateSeesAHang) {
  board_.Set({.state = LoopState::kReady});
  clock_.Advance(kLoopHangs + milliseconds(1));
  const TimePoint start = RealClock()->Now();
  board_.WaitForOtherState(LoopState::kReady, start + std::chrono::hours(1));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
}

}  // namespace
}  // namespace lodestone

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
  EXPECT_THAT(board_.Get().reason, HasSubstr("has not turned for 6 s, limit is 4 s"));
  EXPECT_EQ(board_.Get().running_requests, 3);
  board_.Set({.state = LoopState::kReady});
  EXPECT_EQ(board_.Get().state, LoopState::kReady);
  EXPECT_EQ(board_.Get().reason, "");
}

TEST_F(StatusBoardTest, ALongTurnThatGetsOnIsNoHang) {
  board_.Set({.state = LoopState::kReady, .running_requests = 3});
  for (int layer = 0; layer < 5; ++layer) {
    clock_.Advance(kLoopHangs);
    EXPECT_EQ(board_.Get().state, LoopState::kReady);
    board_.NoteProgress();
  }
  clock_.Advance(kLoopHangs + milliseconds(1));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
  board_.NoteProgress();
  EXPECT_EQ(board_.Get().state, LoopState::kReady);
  EXPECT_EQ(board_.Get().running_requests, 3);
}

// So that a router that asks every half second hears of it within 5 s.
TEST_F(StatusBoardTest, AHangIsNoticedIn4sForEach512TokensOfAStep) {
  EXPECT_EQ(HangLimitFor(16, kHostDevice), milliseconds(4'000));
  EXPECT_EQ(HangLimitFor(512, kHostDevice), milliseconds(4'000));
  EXPECT_EQ(HangLimitFor(10'500, kHostDevice), milliseconds(80'000));
  EXPECT_EQ(HangLimitFor(4'096, DeviceId{0}), milliseconds(4'000));
  EXPECT_EQ(HangLimitFor(10'500, DeviceId{0}), milliseconds(8'000));
  board_.SetHangLimit(HangLimitFor(2048, kHostDevice));
  board_.Set({.state = LoopState::kReady});
  clock_.Advance(milliseconds(16'000));
  EXPECT_EQ(board_.Get().state, LoopState::kReady);
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
}

TEST_F(StatusBoardTest, TheAgeOfTheLastStepIsKnown) {
  EXPECT_EQ(board_.SinceLastStep(), std::nullopt);
  board_.Set({.state = LoopState::kReady, .num_steps = 1});
  clock_.Advance(milliseconds(300));
  board_.Set({.state = LoopState::kReady, .num_steps = 1});
  EXPECT_EQ(board_.SinceLastStep(), milliseconds(300));
  board_.Set({.state = LoopState::kReady, .num_steps = 2});
  EXPECT_EQ(board_.SinceLastStep(), milliseconds(0));
}

TEST_F(StatusBoardTest, LoadingMayTakeAsLongAsItTakes) {
  board_.Set({.state = LoopState::kLoading, .reason = "half of it"});
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

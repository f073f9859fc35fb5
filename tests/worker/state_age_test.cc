#include <gtest/gtest.h>

#include "worker/status_board.h"

namespace lodestone {
namespace {

using std::chrono::seconds;
using Age = std::pair<LoopState, std::chrono::nanoseconds>;

// A start that hangs, a drain that does not end: the state tells for how long.
TEST(StateAgeTest, CountsFromTheChangeOfTheState) {
  FakeClock clock;
  StatusBoard board(&clock);
  clock.Advance(seconds(100));
  EXPECT_EQ(board.StateAndAge(), Age(LoopState::kLoading, seconds(100)));
  board.Set({.state = LoopState::kReady});
  clock.Advance(seconds(2));
  board.Set({.state = LoopState::kReady, .running_requests = 1});
  clock.Advance(seconds(1));
  EXPECT_EQ(board.StateAndAge(), Age(LoopState::kReady, seconds(3)));
  board.Set({.state = LoopState::kDraining});
  EXPECT_EQ(board.StateAndAge(), Age(LoopState::kDraining, seconds(0)));
}

TEST(StateAgeTest, ALoopThatHangsIsUnhealthySinceItsLimit) {
  FakeClock clock;
  StatusBoard board(&clock);
  board.Set({.state = LoopState::kReady});
  clock.Advance(kLoopHangs + seconds(4));
  EXPECT_EQ(board.StateAndAge(), Age(LoopState::kUnhealthy, seconds(4)));
  board.Set({.state = LoopState::kReady});  // it turns again
  clock.Advance(seconds(1));
  EXPECT_EQ(board.StateAndAge(), Age(LoopState::kReady, seconds(1)));
}

}  // namespace
}  // namespace lodestone

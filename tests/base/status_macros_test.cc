#include "base/status_macros.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

absl::StatusOr<std::unique_ptr<int>> MakeInt(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<std::pair<int, int>> MakePair(int a, int b) { return std::pair<int, int>(a, b); }

absl::StatusOr<int> Sum(int a, int b) {
  ASSIGN_OR_RETURN(std::unique_ptr<int> first, MakeInt(a));
  std::unique_ptr<int> second;
  ASSIGN_OR_RETURN(second, MakeInt(b));
  ASSIGN_OR_RETURN((std::pair<int, int> both), MakePair(*first, *second));
  return both.first + both.second;
}

absl::Status FirstError(const absl::Status& status, bool* reached_end) {
  RETURN_IF_ERROR(status);
  *reached_end = true;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsMoveOnlyValuesAndTypesWithCommas) { EXPECT_EQ(Sum(2, 3).value(), 5); }

TEST(StatusMacrosTest, ReturnsTheFirstError) {
  EXPECT_EQ(Sum(1, -1).status(), absl::InvalidArgumentError("negative"));
  bool reached_end = false;
  EXPECT_EQ(FirstError(absl::DataLossError("x"), &reached_end), absl::DataLossError("x"));
  EXPECT_FALSE(reached_end);
  EXPECT_TRUE(FirstError(absl::OkStatus(), &reached_end).ok());
  EXPECT_TRUE(reached_end);
}

}  // namespace
}  // namespace lodestone

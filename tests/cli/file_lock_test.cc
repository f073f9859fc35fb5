#include "cli/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

namespace lodestone {
namespace {

using testing::HasSubstr;

TEST(FileLockTest, ASecondHolderIsToldWhoTheFirstIs) {
  const std::string path = testing::TempDir() + "/file_lock_test_" + std::to_string(getpid());
  auto first = FileLock::Take(path);
  ASSERT_TRUE(first.ok()) << first.status();
  std::optional<FileLock> held(*std::move(first));
  const auto second = FileLock::Take(path);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("held by process " + std::to_string(getpid())));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path));
  held.reset();
  EXPECT_TRUE(FileLock::Take(path).ok());
}

TEST(FileLockTest, AFileThatCannotBeMadeIsNamed) {
  const auto lock = FileLock::Take("/nowhere/at/all");
  EXPECT_EQ(lock.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lock.status().message()), HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace lodestone

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/failing_allocations.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

TEST(OutOfMemoryTest, ACheckpointIsOpenedOrRefusedWhicheverAllocationFails) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    absl::Status status;
    arm([&] { status = Checkpoint::Open(dir.path(), {}).status(); });
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  });
  EXPECT_GT(failures, 500);
}

}  // namespace
}  // namespace lodestone

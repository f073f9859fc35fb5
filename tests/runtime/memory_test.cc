#include "runtime/memory.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

TEST(BufferTest, IsZeroedAlignedAndWritable) {
  const Buffer buffer = Buffer::Allocate(10'001).value();
  EXPECT_EQ(buffer.size(), 10'001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0);
  EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.size(),
                          [](std::byte b) { return b == std::byte{0}; }));
  buffer.data()[10'000] = std::byte{7};
  EXPECT_EQ(buffer.data()[10'000], std::byte{7});
}

TEST(BufferTest, NoBytesNeedNoMemory) {
  const Buffer buffer = Buffer::Allocate(0).value();
  EXPECT_EQ(buffer.size(), 0);
}

TEST(BufferTest, ImpossibleSizesAreRefusedWithTheSize) {
  for (int64_t bytes : {int64_t{-1}, std::numeric_limits<int64_t>::max() / 2}) {
    const absl::Status status = Buffer::Allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::to_string(bytes)));
  }
}

TEST(BufferTest, MovingHandsTheMemoryOver) {
  Buffer first = Buffer::Allocate(64).value();
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  Buffer third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 64);
}

}  // namespace
}  // namespace lodestone

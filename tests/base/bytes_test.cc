#include "base/bytes.h"

#include <limits>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(CheckedMathTest, RefusesToWrap) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1).value(), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1).value(), 0xFFFFFFFF00000000u);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(12897485), "12.3 MiB");
  EXPECT_EQ(FormatBytes((uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(kMax), "16.0 EiB");
}

TEST(ParseBytesTest, ReadsBinaryDecimalAndPlainSizes) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096);
  EXPECT_EQ(ParseBytes("64MiB").value(), 64 << 20);
  EXPECT_EQ(ParseBytes("64 MiB").value(), 64 << 20);
  EXPECT_EQ(ParseBytes("1.5GiB").value(), int64_t{3} << 29);
  EXPECT_EQ(ParseBytes("2kB").value(), 2000);
  EXPECT_EQ(ParseBytes("9223372036854775807").value(), std::numeric_limits<int64_t>::max());
}

TEST(ParseBytesTest, RefusesEverythingElse) {
  for (const char* text : {"", "MiB", "-1", "1XB", "1.2.3GiB", "64 M", "1 ", "0.3B", "1e3", "64mib",
                           "9223372036854775808", "8388608TiB", "99999999.5TiB"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace lodestone

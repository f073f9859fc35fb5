#include "kernels/numeric/row_digest.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr int64_t kRowBytes = 132;

std::vector<std::byte> RandomBytes(int64_t n) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint64_t SumOf(const std::vector<std::byte>& rows, int64_t first_row, int64_t num_rows) {
  uint64_t sum = 0;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    sum += RowDigest(CacheKind::kIndexKeys, 2, row, rows.data() + row * kRowBytes, kRowBytes);
  }
  return sum;
}

TEST(RowDigestTest, SumsAreAdditiveOverSplits) {
  const std::vector<std::byte> rows = RandomBytes(10 * kRowBytes);
  const uint64_t whole = SumOf(rows, 0, 10);
  for (int64_t cut = 0; cut <= 10; ++cut) {
    EXPECT_EQ(SumOf(rows, cut, 10 - cut) + SumOf(rows, 0, cut), whole);
  }
}

TEST(RowDigestTest, SwappedRepeatedOrAlteredRowsChangeTheSum) {
  const std::vector<std::byte> rows = RandomBytes(4 * kRowBytes);
  const uint64_t whole = SumOf(rows, 0, 4);
  std::vector<std::byte> swapped = rows;
  std::swap_ranges(swapped.begin(), swapped.begin() + kRowBytes, swapped.begin() + kRowBytes);
  EXPECT_NE(SumOf(swapped, 0, 4), whole);
  std::vector<std::byte> repeated = rows;
  std::copy_n(repeated.begin(), kRowBytes, repeated.begin() + kRowBytes);
  EXPECT_NE(SumOf(repeated, 0, 4), whole);
  for (int64_t byte = 0; byte < 4 * kRowBytes; ++byte) {
    std::vector<std::byte> altered = rows;
    altered[byte] ^= std::byte{1};
    ASSERT_NE(SumOf(altered, 0, 4), whole);
  }
}

TEST(RowDigestTest, DependsOnKindLayerAndEntry) {
  const std::vector<std::byte> row = RandomBytes(kRowBytes);
  std::set<uint64_t> digests;
  for (int kind = 0; kind < kNumCacheKinds; ++kind) {
    for (int32_t layer = 0; layer < 8; ++layer) {
      for (int64_t entry = 0; entry < 8; ++entry) {
        digests.insert(
            RowDigest(static_cast<CacheKind>(kind), layer, entry, row.data(), kRowBytes));
      }
    }
  }
  EXPECT_EQ(digests.size(), static_cast<size_t>(kNumCacheKinds * 8 * 8));
}

TEST(RowDigestTest, TwoPartsEqualTheirConcatenation) {
  std::vector<std::byte> rows = RandomBytes(3 * kRowBytes);
  RowRun run{.kind = CacheKind::kIndexKeys, .layer = 2, .first_entry = 5, .num_rows = 3};
  run.num_parts = 2;
  run.part[0] = rows.data();
  run.part[1] = rows.data() + 128;
  run.part_bytes[0] = 128;
  run.part_bytes[1] = 4;
  run.part_stride[0] = run.part_stride[1] = kRowBytes;
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(RowDigest(run, row), RowDigest(CacheKind::kIndexKeys, 2, 5 + row,
                                             rows.data() + row * kRowBytes, kRowBytes));
  }
}

}  // namespace
}  // namespace lodestone

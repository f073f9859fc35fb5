#include "kvtransfer/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace lodestone {
namespace {

RowRun MakeRun(int64_t first, int64_t rows, std::byte* at, int64_t bytes) {
  RowRun run;
  run.kind = CacheKind::kIndexKeys;
  run.first_entry = first;
  run.num_rows = rows;
  run.num_parts = 1;
  run.part[0] = at;
  run.part_bytes[0] = bytes;
  run.part_stride[0] = bytes + 4;
  return run;
}

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

TEST(RowsTest, PiecesJoinToTheWhole) {
  std::byte memory[2048];
  const std::vector<RowRun> runs = {MakeRun(0, 5, memory, 16), MakeRun(9, 1, memory + 500, 32),
                                    MakeRun(20, 7, memory + 1000, 8)};
  const int64_t total = CountRows(runs);
  EXPECT_EQ(total, 13);
  for (int64_t step = 1; step <= total; ++step) {
    std::vector<std::pair<int64_t, std::byte*>> rows;
    RunPlace place;
    for (int64_t first = 0; first < total; first += step) {
      const std::vector<RowRun> piece = TakeRows(runs, step, kAny, place);
      EXPECT_EQ(CountRows(piece), std::min(step, total - first));
      for (const RowRun& run : piece) {
        for (int64_t row = 0; row < run.num_rows; ++row) {
          rows.push_back({run.first_entry + row, run.At(0, row)});
        }
      }
    }
    ASSERT_EQ(rows.size(), 13u);
    EXPECT_EQ(rows[4], std::pair(int64_t{4}, memory + 80));
    EXPECT_EQ(rows[5], std::pair(int64_t{9}, memory + 500));
    EXPECT_EQ(rows[12], std::pair(int64_t{26}, memory + 1000 + 72));
    EXPECT_TRUE(TakeRows(runs, step, kAny, place).empty());
  }
}

TEST(RowsTest, OnlyWholeRowsFit) {
  std::byte memory[2048];
  const std::vector<RowRun> runs = {MakeRun(0, 5, memory, 16), MakeRun(9, 1, memory, 32),
                                    MakeRun(20, 7, memory, 8)};
  const auto fit = [&runs](int64_t first_row, int64_t bytes) {
    RunPlace place;
    TakeRows(runs, first_row, kAny, place);
    return CountRows(TakeRows(runs, kAny, bytes, place));
  };
  EXPECT_EQ(fit(0, 15), 0);
  EXPECT_EQ(fit(0, 16), 1);
  EXPECT_EQ(fit(0, 80), 5);
  EXPECT_EQ(fit(0, 111), 5) << "a row is skipped because a smaller one would fit";
  EXPECT_EQ(fit(0, 112), 6);
  EXPECT_EQ(fit(3, 1000), 10);
  EXPECT_EQ(fit(13, 1000), 0);
}

TEST(RowsTest, ManifestsAddUpAndNameWhatDiffers) {
  std::byte memory[256];
  const std::vector<RowRun> runs = {MakeRun(0, 5, memory, 16)};
  Manifest total{};
  Manifest part = CountKinds(runs);
  part[2].digest = ~uint64_t{0};
  Accumulate(part, total);
  Accumulate(part, total);
  EXPECT_EQ(total[2].rows, 10);
  EXPECT_EQ(total[2].bytes, 160);
  EXPECT_EQ(total[2].digest, ~uint64_t{0} - 1);
  EXPECT_EQ(TotalBytes(total), 160);
  EXPECT_EQ(DifferingKind(total, total), "");
  EXPECT_EQ(DifferingKind(total, part), "index_keys: 10 rows here, 5 offered");
}

}  // namespace
}  // namespace lodestone

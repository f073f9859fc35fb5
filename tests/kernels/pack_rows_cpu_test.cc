#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

// Page p of `memory` begins at kPageBytes * p. Runs of this many pages are cut by the launches.
constexpr int64_t kPageBytes = 1 << 10;
constexpr int64_t kNumPages = 5'000;

// The pages of a sequence, in an order of their own.
const std::vector<PageId>& Pages() {
  static const std::vector<PageId> pages = [] {
    std::vector<PageId> shuffled;
    for (int32_t i = 0; i < kNumPages; ++i) shuffled.push_back(PageId(i * 1'009 % kNumPages));
    return shuffled;
  }();
  return pages;
}

// Rows of 96 + 4 bytes, four to a page and the parts planar, in three runs of many pages, of a few
// and of a piece of one; then rows of 24 bytes in the rest of the same pages.
std::vector<RowRun> PagedRuns(const HostTensor& memory) {
  RowRun whole{.kind = CacheKind::kLatentsIndexed, .layer = 3, .num_rows = 4 * kNumPages};
  whole.num_parts = 2;
  whole.part[0] = memory.view().as<std::byte>();
  whole.part[1] = whole.part[0] + 4 * 96;
  whole.part_bytes[0] = whole.part_stride[0] = 96;
  whole.part_bytes[1] = whole.part_stride[1] = 4;
  whole.pages = Pages().data();
  whole.rows_per_page = 4;
  whole.page_stride[0] = whole.page_stride[1] = kPageBytes;
  RowRun keys{.kind = CacheKind::kIndexKeys, .layer = 3, .num_rows = 25 * kNumPages};
  keys.num_parts = 1;
  keys.part[0] = whole.part[0] + 4 * 100;
  keys.part_bytes[0] = keys.part_stride[0] = 24;
  keys.pages = Pages().data();
  keys.rows_per_page = 25;
  keys.page_stride[0] = kPageBytes;
  return {whole.Rows(5, 4 * kNumPages - 500), whole.Rows(4 * kNumPages - 90, 17), whole.Rows(2, 1),
          keys.Rows(30, 24 * kNumPages), keys.Rows(3, 9)};
}

// Rows in two parts, rows in one part, an empty run.
std::vector<RowRun> Runs(const HostTensor& memory) {
  std::byte* base = memory.view().as<std::byte>();
  std::vector<RowRun> runs;
  for (int32_t i = 0; i < 40; ++i) {
    RowRun run;
    run.kind = i % 2 == 0 ? CacheKind::kIndexKeys : CacheKind::kRingWindows;
    run.layer = i % 5;
    run.first_entry = 64 * i;
    run.num_rows = i == 7 ? 0 : 1 + i % 64;
    run.num_parts = 1 + i % 2;
    run.part[0] = base + 20000 * i;
    run.part_bytes[0] = 128;
    run.part_stride[0] = 136;
    if (run.num_parts == 2) {
      run.part[1] = run.part[0] + 64 * 136;
      run.part_bytes[1] = 4;
      run.part_stride[1] = 8;
    }
    runs.push_back(run);
  }
  return runs;
}

HostTensor RandomBytes(int64_t num_bytes) {
  HostTensor memory(DType::kU8, {num_bytes});
  for (int64_t i = 0; i < num_bytes; ++i) {
    memory.view().as<uint8_t>()[i] = static_cast<uint8_t>((i * 2654435761u) >> 13);
  }
  return memory;
}

int64_t TotalBytes(const std::vector<RowRun>& runs) {
  int64_t total = 0;
  for (const RowRun& run : runs) total += run.bytes();
  return total;
}

using ListRuns = std::vector<RowRun> (*)(const HostTensor&);

void ExpectPacksAsTheReferenceDoes(int64_t num_bytes, ListRuns list) {
  const HostTensor memory = RandomBytes(num_bytes);
  const std::vector<RowRun> runs = list(memory);
  const OpRun pack = [&](const Ops& ops, Stream& stream) {
    HostTensor slot(DType::kU8, {TotalBytes(runs)});
    HostTensor digests(DType::kI64, {kNumCacheKinds});
    ops.PackRows({.runs = runs,
                  .slot = slot.view().as<std::byte>(),
                  .slot_bytes = slot.size(),
                  .digests = digests.view().as<uint64_t>()},
                 stream);
    OpResult result;
    result.AddBytes(slot);
    result.AddBytes(digests);
    return result;
  };
  EXPECT_TRUE(RunOnAllBackends(pack).bytes == RunReference(pack).bytes);
}

void ExpectScatterUndoesPack(int64_t num_bytes, ListRuns list) {
  const HostTensor source = RandomBytes(num_bytes);
  const std::vector<RowRun> from = list(source);
  RunOnAllBackends([&](const Ops& ops, Stream& stream) {
    HostTensor target(DType::kU8, {num_bytes}), slot(DType::kU8, {TotalBytes(from)});
    HostTensor packed(DType::kI64, {kNumCacheKinds}), scattered(DType::kI64, {kNumCacheKinds});
    const auto params = [&](const std::vector<RowRun>& runs, const HostTensor& digests) {
      return MoveRowsParams{.runs = runs,
                            .slot = slot.view().as<std::byte>(),
                            .slot_bytes = slot.size(),
                            .digests = digests.view().as<uint64_t>()};
    };
    ops.PackRows(params(from, packed), stream);
    const std::vector<RowRun> to = list(target);
    ops.ScatterRows(params(to, scattered), stream);
    EXPECT_EQ(packed.Bytes(), scattered.Bytes());
    OpResult result;
    result.AddBytes(target);
    return result;
  });
}

TEST(CpuMoveRowsTest, PacksAndDigestsAsTheReferenceDoes) {
  ExpectPacksAsTheReferenceDoes(20000 * 41, Runs);
}

TEST(CpuMoveRowsTest, ScatterUndoesPackWithTheSameDigests) {
  ExpectScatterUndoesPack(20000 * 41, Runs);
}

TEST(CpuMoveRowsTest, PacksRowsOfPagesAsTheReferenceDoes) {
  ExpectPacksAsTheReferenceDoes(kPageBytes * kNumPages, PagedRuns);
}

TEST(CpuMoveRowsTest, ScatterIntoPagesUndoesPackWithTheSameDigests) {
  ExpectScatterUndoesPack(kPageBytes * kNumPages, PagedRuns);
}

}  // namespace
}  // namespace lodestone

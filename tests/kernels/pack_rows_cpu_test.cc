#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

// Rows in two parts from pages, rows in one part, an empty run.
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

TEST(CpuMoveRowsTest, PacksAndDigestsAsTheReferenceDoes) {
  const HostTensor memory = RandomBytes(20000 * 41);
  const std::vector<RowRun> runs = Runs(memory);
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

TEST(CpuMoveRowsTest, ScatterUndoesPackWithTheSameDigests) {
  const HostTensor source = RandomBytes(20000 * 41);
  const std::vector<RowRun> from = Runs(source);
  RunOnAllBackends([&](const Ops& ops, Stream& stream) {
    HostTensor target(DType::kU8, {20000 * 41}), slot(DType::kU8, {TotalBytes(from)});
    HostTensor packed(DType::kI64, {kNumCacheKinds}), scattered(DType::kI64, {kNumCacheKinds});
    const auto params = [&](const std::vector<RowRun>& runs, const HostTensor& digests) {
      return MoveRowsParams{.runs = runs,
                            .slot = slot.view().as<std::byte>(),
                            .slot_bytes = slot.size(),
                            .digests = digests.view().as<uint64_t>()};
    };
    ops.PackRows(params(from, packed), stream);
    const std::vector<RowRun> to = Runs(target);
    ops.ScatterRows(params(to, scattered), stream);
    EXPECT_EQ(packed.Bytes(), scattered.Bytes());
    OpResult result;
    result.AddBytes(target);
    return result;
  });
}

}  // namespace
}  // namespace lodestone

#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/numeric/row_digest.h"

namespace lodestone::cpu {
namespace {

// Calls visit(part address, slot address, bytes) for every part of rows [first, first + count) of
// all rows in slot order, then adds the row's digest, taken from the cache side. Digests commute,
// so ranges may run in any order.
template <typename Visit>
void VisitRows(const MoveRowsParams& p, int64_t first, int64_t count, const Visit& visit) {
  RowDigests digests = {};
  std::byte* at = p.slot;
  int64_t run_first = 0;  // number of the run's first row
  for (const RowRun& run : p.runs) {
    const int64_t begin = std::max<int64_t>(0, first - run_first);
    const int64_t end = std::min(run.num_rows, first + count - run_first);
    for (int64_t row = begin; row < end; ++row) {
      std::byte* out = at + row * run.row_bytes();
      for (int part = 0; part < run.num_parts; ++part) {
        visit(run.At(part, row), out, static_cast<size_t>(run.part_bytes[part]));
        out += run.part_bytes[part];
      }
      digests[static_cast<int>(run.kind)] += RowDigest(run, row);
    }
    at += run.bytes();
    run_first += run.num_rows;
    if (run_first >= first + count) break;
  }
  for (int kind = 0; kind < kNumCacheKinds; ++kind) {
    if (digests[kind] == 0) continue;
    std::atomic_ref<uint64_t>(p.digests[kind]).fetch_add(digests[kind], std::memory_order_relaxed);
  }
}

template <typename Visit>
void MoveRows(const MoveRowsParams& p, ThreadPool& pool, const Visit& visit) {
  int64_t num_rows = 0;
  int64_t num_bytes = 0;
  for (const RowRun& run : p.runs) {
    num_rows += run.num_rows;
    num_bytes += run.bytes();
  }
  if (num_rows == 0) return;
  ForRanges(pool, num_rows, num_bytes / num_rows / 5 + 20, 1,
            [&](int64_t first, int64_t count) { VisitRows(p, first, count, visit); });
}

}  // namespace

void PackRows(const MoveRowsParams& p, ThreadPool& pool) {
  MoveRows(p, pool, [](const std::byte* part, std::byte* slot, size_t num_bytes) {
    std::memcpy(slot, part, num_bytes);
  });
}

void ScatterRows(const MoveRowsParams& p, ThreadPool& pool) {
  MoveRows(p, pool, [](std::byte* part, const std::byte* slot, size_t num_bytes) {
    std::memcpy(part, slot, num_bytes);
  });
}

}  // namespace lodestone::cpu

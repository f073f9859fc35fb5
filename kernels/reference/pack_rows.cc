#include <cstring>

#include "kernels/numeric/row_digest.h"
#include "kernels/reference/reference_ops.h"

namespace lodestone::reference {
namespace {

// Calls visit(part address, slot address, bytes) for every part of every row, in slot order, then
// adds the row's digest, taken from the cache side.
template <typename Visit>
void ForEachRow(const MoveRowsParams& p, const Visit& visit) {
  std::byte* at = p.slot;
  for (const RowRun& run : p.runs) {
    for (int64_t row = 0; row < run.num_rows; ++row) {
      for (int part = 0; part < run.num_parts; ++part) {
        visit(run.At(part, row), at, static_cast<size_t>(run.part_bytes[part]));
        at += run.part_bytes[part];
      }
      p.digests[static_cast<int>(run.kind)] += RowDigest(run, row);
    }
  }
}

}  // namespace

void PackRows(const MoveRowsParams& p) {
  ForEachRow(p, [](const std::byte* part, std::byte* slot, size_t num_bytes) {
    std::memcpy(slot, part, num_bytes);
  });
}

void ScatterRows(const MoveRowsParams& p) {
  ForEachRow(p, [](std::byte* part, const std::byte* slot, size_t num_bytes) {
    std::memcpy(part, slot, num_bytes);
  });
}

}  // namespace lodestone::reference

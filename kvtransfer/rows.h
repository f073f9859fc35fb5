// Pieces of the canonical row order of a cache (SequenceCache::AppendRuns, FinalRuns): both ends of
// a link derive the same rows from the same numbers, so no address or index travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/op_params.h"
#include "kvtransfer/manifest.h"

namespace lodestone {

// A place among the rows of a list of runs.
struct RunPlace {
  size_t run = 0;
  int64_t row = 0;  // of that run
};

// The rows of `runs` from `place` on, `max_rows` of them at most and no more than fit into
// `max_bytes`; moves `place` behind them. Nothing if the first does not fit or none is left.
std::vector<RowRun> TakeRows(std::span<const RowRun> runs, int64_t max_rows, int64_t max_bytes,
                             RunPlace& place);

int64_t CountRows(std::span<const RowRun> runs);

// Rows and bytes by kind; digests 0.
Manifest CountKinds(std::span<const RowRun> runs);
int64_t TotalBytes(const Manifest& kinds);

// Digests add mod 2^64.
void Accumulate(const Manifest& part, Manifest& total);

// The first difference of two manifests, as "index_keys: 64 rows here, 63 offered"; "" if none.
std::string DifferingKind(const Manifest& here, const Manifest& offered);

}  // namespace lodestone

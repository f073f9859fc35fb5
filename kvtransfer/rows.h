// Pieces of the canonical row order of a cache (SequenceCache::AppendRuns, FinalRuns): both ends of a
// link derive the same rows from the same numbers, so no address or index travels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/op_params.h"
#include "kvtransfer/manifest.h"

namespace lodestone {

// Rows [first_row, first_row + num_rows) of the rows of `runs` in order.
// REQUIRES: they exist.
std::vector<RowRun> SliceRuns(std::span<const RowRun> runs, int64_t first_row, int64_t num_rows);

int64_t CountRows(std::span<const RowRun> runs);

// How many rows from `first_row` on fit into `max_bytes`; 0 if the first does not or none is left.
int64_t RowsThatFit(std::span<const RowRun> runs, int64_t first_row, int64_t max_bytes);

// Rows and bytes by kind; digests 0.
Manifest CountKinds(std::span<const RowRun> runs);
int64_t TotalBytes(const Manifest& kinds);

// Digests add mod 2^64.
void Accumulate(const Manifest& part, Manifest& total);

// The first difference of two manifests, as "index_keys: 64 rows here, 63 offered"; "" if none.
std::string DifferingKind(const Manifest& here, const Manifest& offered);

}  // namespace lodestone

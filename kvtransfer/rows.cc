#include "kvtransfer/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace lodestone {
namespace {

RowRun SubRun(const RowRun& run, int64_t first_row, int64_t num_rows) {
  RowRun piece = run;
  piece.first_entry += first_row;
  piece.num_rows = num_rows;
  for (int part = 0; part < run.num_parts; ++part) {
    piece.part[part] += first_row * run.part_stride[part];
  }
  return piece;
}

}  // namespace

std::vector<RowRun> SliceRuns(std::span<const RowRun> runs, int64_t first_row, int64_t num_rows) {
  std::vector<RowRun> slice;
  int64_t skip = first_row;
  int64_t left = num_rows;
  for (const RowRun& run : runs) {
    if (left == 0) break;
    if (skip >= run.num_rows) {
      skip -= run.num_rows;
      continue;
    }
    const int64_t take = std::min(left, run.num_rows - skip);
    slice.push_back(SubRun(run, skip, take));
    skip = 0;
    left -= take;
  }
  CHECK_EQ(left, 0) << "rows from " << first_row << " on, " << num_rows << " of them";
  return slice;
}

int64_t CountRows(std::span<const RowRun> runs) {
  int64_t rows = 0;
  for (const RowRun& run : runs) rows += run.num_rows;
  return rows;
}

int64_t RowsThatFit(std::span<const RowRun> runs, int64_t first_row, int64_t max_bytes) {
  int64_t skip = first_row;
  int64_t left = max_bytes;
  int64_t rows = 0;
  for (const RowRun& run : runs) {
    if (skip >= run.num_rows) {
      skip -= run.num_rows;
      continue;
    }
    const int64_t have = run.num_rows - skip;
    const int64_t take = std::min(have, left / run.row_bytes());
    skip = 0;
    rows += take;
    left -= take * run.row_bytes();
    if (take < have) break;
  }
  return rows;
}

Manifest CountKinds(std::span<const RowRun> runs) {
  Manifest kinds{};
  for (const RowRun& run : runs) {
    KindRows& kind = kinds[static_cast<size_t>(run.kind)];
    kind.rows += run.num_rows;
    kind.bytes += run.bytes();
  }
  return kinds;
}

int64_t TotalBytes(const Manifest& kinds) {
  int64_t bytes = 0;
  for (const KindRows& kind : kinds) bytes += kind.bytes;
  return bytes;
}

void Accumulate(const Manifest& part, Manifest& total) {
  for (size_t kind = 0; kind < total.size(); ++kind) {
    total[kind].rows += part[kind].rows;
    total[kind].bytes += part[kind].bytes;
    total[kind].digest += part[kind].digest;
  }
}

std::string DifferingKind(const Manifest& here, const Manifest& offered) {
  for (size_t i = 0; i < here.size(); ++i) {
    const std::string name(Name(static_cast<CacheKind>(i)));
    if (here[i].rows != offered[i].rows) {
      return absl::StrCat(name, ": ", here[i].rows, " rows here, ", offered[i].rows, " offered");
    }
    if (here[i].bytes != offered[i].bytes) {
      return absl::StrCat(name, ": ", here[i].bytes, " bytes here, ", offered[i].bytes, " offered");
    }
    if (here[i].digest != offered[i].digest) {
      return absl::StrCat(name, ": digest ", absl::Hex(here[i].digest, absl::kZeroPad16), " here, ",
                          absl::Hex(offered[i].digest, absl::kZeroPad16), " offered");
    }
  }
  return "";
}

}  // namespace lodestone

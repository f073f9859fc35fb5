#include "kvtransfer/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone {

std::vector<RowRun> TakeRows(std::span<const RowRun> runs, int64_t max_rows, int64_t max_bytes,
                             RunPlace& place) {
  std::vector<RowRun> taken;
  while (place.run < runs.size() && max_rows > 0) {
    const RowRun& run = runs[place.run];
    const int64_t left = run.num_rows - place.row;
    const int64_t rows = std::min({left, max_rows, max_bytes / run.row_bytes()});
    if (rows > 0) taken.push_back(run.Rows(place.row, rows));
    max_rows -= rows;
    max_bytes -= rows * run.row_bytes();
    if (rows < left) {
      place.row += rows;
      break;
    }
    ++place.run;
    place.row = 0;
  }
  return taken;
}

int64_t CountRows(std::span<const RowRun> runs) {
  int64_t rows = 0;
  for (const RowRun& run : runs) rows += run.num_rows;
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

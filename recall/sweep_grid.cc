#include "recall/sweep_grid.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

namespace lodestone {
namespace {

constexpr int64_t kResidues = 128;   // entries of the dense layers stand for so many tokens
constexpr int64_t kResidueRows = 4;  // and those of the indexed layers for so many

// The index of `value`, which is appended if it is new.
template <typename T>
size_t IndexOf(std::vector<T>& values, const T& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found != values.end()) return static_cast<size_t>(found - values.begin());
  values.push_back(value);
  return values.size() - 1;
}

void AddTo(GridCell& grid_cell, const SweepCell& cell) {
  grid_cell.questions.push_back(&cell);
  grid_cell.found += cell.outcome == NeedleOutcome::kFound;
  grid_cell.failed += cell.outcome == NeedleOutcome::kFailed;
}

SweepGrid DepthGrid(const SweepTable& table) {
  SweepGrid grid{.row_name = "depth", .column_name = "tokens"};
  std::vector<int64_t> lengths;
  for (const SweepCell& cell : table.cells()) {
    IndexOf(grid.rows, cell.place);
    IndexOf(lengths, cell.length);
  }
  for (const int64_t length : lengths) grid.columns.push_back(WithThousands(length));
  grid.cells.assign(grid.rows.size(), std::vector<GridCell>(grid.columns.size()));
  for (const SweepCell& cell : table.cells()) {
    AddTo(grid.cells[IndexOf(grid.rows, cell.place)][IndexOf(lengths, cell.length)], cell);
  }
  return grid;
}

SweepGrid ResidueGrid(const SweepTable& table, int64_t per_column) {
  SweepGrid grid{.row_name = "tokens mod 4", .column_name = "tokens mod 128"};
  for (int64_t row = 0; row < kResidueRows; ++row) grid.rows.push_back(absl::StrCat(row));
  for (int64_t first = 0; first < kResidues; first += per_column) {
    grid.columns.push_back(per_column == kResidueRows
                               ? absl::StrCat(first)
                               : absl::StrCat(first, "-", first + per_column - 1));
  }
  grid.cells.assign(grid.rows.size(), std::vector<GridCell>(grid.columns.size()));
  for (const SweepCell& cell : table.cells()) {
    const auto row = static_cast<size_t>(cell.length % kResidueRows);
    const auto column = static_cast<size_t>(cell.length % kResidues / per_column);
    AddTo(grid.cells[row][column], cell);
  }
  return grid;
}

}  // namespace

std::string GridCell::Text() const {
  if (questions.empty()) return "-";
  if (questions.size() == 1) return std::string(OutcomeName(questions.front()->outcome));
  return absl::StrCat(found, " of ", asked());
}

SweepGrid GridOf(const SweepTable& table, int64_t residues_per_column) {
  return table.kind() == SweepKind::kResidues ? ResidueGrid(table, residues_per_column)
                                              : DepthGrid(table);
}

std::string WithThousands(int64_t value) {
  std::string text = std::to_string(value);
  for (auto pos = static_cast<int64_t>(text.size()) - 3; pos > 0; pos -= 3)
    text.insert(static_cast<size_t>(pos), 1, ',');
  return text;
}

}  // namespace lodestone

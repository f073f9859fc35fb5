#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recall/sweep_table.h"

namespace lodestone {

// The questions that share a row and a column.
struct GridCell {
  std::vector<const SweepCell*> questions;
  int found = 0;
  int failed = 0;

  int asked() const { return static_cast<int>(questions.size()); }
  // "found", "missed" or "failed" of one question, "3 of 4" found of several, "-" of none.
  std::string Text() const;
};

// A sweep as rows and columns; the text table and the heat map are both drawn from it.
// Depths: rows are places, columns lengths, both in order of first appearance. Residues: rows are
// the length mod 4, columns the length mod 128 without its last two bits, so row + column is the
// length mod 128.
struct SweepGrid {
  std::string row_name;     // "depth"
  std::string column_name;  // "tokens"
  std::vector<std::string> rows{};
  std::vector<std::string> columns{};
  std::vector<std::vector<GridCell>> cells{};  // [row][column]
};

// Points into `table`, which must outlive it. `residues_per_column` (4, 8, ... 128) is how many
// lengths mod 128 share a column of a residue sweep; the others ignore it.
SweepGrid GridOf(const SweepTable& table, int64_t residues_per_column = 4);

// 10498 as "10,498".
std::string WithThousands(int64_t value);

}  // namespace lodestone

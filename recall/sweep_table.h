#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lodestone {

// How one needle question ended. kFailed: no answer came (an error, which is not a miss).
enum class NeedleOutcome { kFound, kMissed, kFailed };

struct SweepCell {
  int64_t length = 0;   // wanted prompt tokens
  std::string place{};  // row: a depth such as "0.25", or a name such as "just outside"
  int repeat = 0;
  NeedleOutcome outcome = NeedleOutcome::kFailed;
  int64_t prompt_tokens = 0;  // as the server counted them; 0 if unknown
  double seconds = 0;         // from request to the end of the answer
  std::string expected{};     // the code
  std::string reply{};        // the answer, or the error if kFailed
};

// Collects the cells of a sweep in any order and shows them: rows are places, columns lengths, both
// in order of first appearance.
class SweepTable {
 public:
  void Add(SweepCell cell) { cells_.push_back(std::move(cell)); }

  int found() const { return Count(NeedleOutcome::kFound); }
  int failed() const { return Count(NeedleOutcome::kFailed); }
  int total() const { return static_cast<int>(cells_.size()); }
  bool AllFound() const { return found() == total(); }
  // "25 of 25", and ", 2 failed" where some did.
  std::string Summary() const;

  // Columns aligned with spaces, one line per place, ends in a newline. A cell is "found" or
  // "missed" (or "failed") for one repeat, "3 of 4" for several, "-" for none.
  std::string ToText() const;
  // {"found", "failed", "total", "cells": [...]} on one line, one object per cell.
  std::string ToJson() const;

  const std::vector<SweepCell>& cells() const { return cells_; }

 private:
  int Count(NeedleOutcome outcome) const;
  std::string CellText(const std::string& place, int64_t length) const;

  std::vector<SweepCell> cells_;
};

// "0", "0.25", "0.5": a depth as the name of a row.
std::string DepthName(double depth);

}  // namespace lodestone

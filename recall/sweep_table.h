#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// What a sweep varies, and so what its rows and columns are: depths of the needle by prompt
// lengths, or the residues of the prompt length mod 4 and mod 128.
enum class SweepKind { kDepths, kResidues };

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
  std::string answer{};       // the whole reply of a model trained on this form; empty if unknown
  std::string reply{};        // the answer, or the error if kFailed
};

// Collects the cells of one sweep in any order; recall/sweep_grid.h arranges them.
class SweepTable {
 public:
  explicit SweepTable(SweepKind kind = SweepKind::kDepths, std::string label = "")
      : kind_(kind), label_(std::move(label)) {}

  void Add(SweepCell cell) { cells_.push_back(std::move(cell)); }

  int found() const { return Count(NeedleOutcome::kFound); }
  int failed() const { return Count(NeedleOutcome::kFailed); }
  int total() const { return static_cast<int>(cells_.size()); }
  bool AllFound() const { return found() == total(); }
  // Replies that are the answer and nothing else.
  int word_for_word() const;
  // Prompts that the server counted to have `length` tokens.
  int of_wanted_length() const;
  // "25 of 25", and ", 2 failed" where some did.
  std::string Summary() const;

  // Columns aligned with spaces, one line per row of the grid, ends in a newline. A cell is "found"
  // or "missed" (or "failed") for one question, "3 of 4" for several, "-" for none.
  std::string ToText() const;
  // {"label", "kind", "found", "failed", "total", "cells": [...]} on one line, one object per cell.
  std::string ToJson() const;
  // Reads what ToJson wrote. INVALID_ARGUMENT names `origin` and the member that is wrong.
  static absl::StatusOr<SweepTable> FromJson(std::string_view json, std::string_view origin);

  SweepKind kind() const { return kind_; }
  const std::string& label() const { return label_; }  // of the server: "fp8"
  const std::vector<SweepCell>& cells() const { return cells_; }

 private:
  int Count(NeedleOutcome outcome) const;

  SweepKind kind_;
  std::string label_;
  std::vector<SweepCell> cells_;
};

// "found", "missed", "failed".
std::string_view OutcomeName(NeedleOutcome outcome);
// "0", "0.25", "0.5": a depth as the name of a row.
std::string DepthName(double depth);

}  // namespace lodestone

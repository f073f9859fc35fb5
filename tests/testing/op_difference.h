#pragma once

#include <cstdint>
#include <span>

#include "runtime/tensor.h"

namespace lodestone {

// How the outputs of one op differ between two backends that had the same inputs, over any number
// of calls. A row is the last axis of an output.
struct OpDifference {
  int64_t rows = 0, different_rows = 0;
  double worst_row = 0;      // largest |got - want| / |want| of a row, Euclidean
  double worst_element = 0;  // largest (|got - want| - ulp |want|) / (root mean square of its row)
  // Where the op chooses: rows with another choice, and by how much, at worst, the lowest score
  // that only `want` chose lies above the highest that only `got` chose, as a share of the row's
  // largest.
  int64_t different_choices = 0;
  double worst_choice = 0;
};

// kF32, kBf16 views of one shape. ulp above is 2^-7 for kBf16 and 0 for kF32.
void CompareRows(const TensorView& got, const TensorView& want, OpDifference& difference);

// Choices of one row: ascending numbers, -1 behind them, and the scores they follow from; none
// where they follow from a table. Other choices than by scores, or another number, differ
// infinitely.
void CompareChoice(std::span<const int32_t> got, std::span<const int32_t> want,
                   std::span<const float> scores, OpDifference& difference);

}  // namespace lodestone

#include "tests/testing/op_difference.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"

namespace lodestone {
namespace {

constexpr double kBf16Ulp = 1.0 / 128;

double ValueAt(const std::byte* row, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<double>(reinterpret_cast<const float*>(row)[i]);
  return static_cast<double>(Bf16ToFloat(reinterpret_cast<const uint16_t*>(row)[i]));
}

void CompareRow(const std::byte* got, const std::byte* want, DType dtype, int64_t width,
                OpDifference& difference) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double w = ValueAt(want, dtype, i);
    const double g = ValueAt(got, dtype, i);
    if (std::isinf(w) && g == w) continue;  // nothing written yet, in both
    error += (g - w) * (g - w);
    size += w * w;
  }
  ++difference.rows;
  if (error == 0) return;
  ++difference.different_rows;
  const double rms = std::sqrt(size / static_cast<double>(width));
  if (rms == 0 || !std::isfinite(error)) {
    difference.worst_row = difference.worst_element = std::numeric_limits<double>::infinity();
    return;
  }
  difference.worst_row = std::max(difference.worst_row, std::sqrt(error / size));
  const double ulp = dtype == DType::kBf16 ? kBf16Ulp : 0;
  for (int64_t i = 0; i < width; ++i) {
    const double w = ValueAt(want, dtype, i);
    const double g = ValueAt(got, dtype, i);
    if (g == w) continue;
    difference.worst_element =
        std::max(difference.worst_element, (std::fabs(g - w) - ulp * std::fabs(w)) / rms);
  }
}

}  // namespace

void CompareRows(const TensorView& got, const TensorView& want, OpDifference& difference) {
  CHECK_EQ(got.ShapeString(), want.ShapeString());
  const int last = want.rank - 1;
  int64_t rows = 1;
  for (int axis = 0; axis < last; ++axis) rows *= want.shape[axis];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, at_got = 0, at_want = 0;
    for (int axis = last - 1; axis >= 0; --axis) {
      at_got += rest % want.shape[axis] * got.strides[axis];
      at_want += rest % want.shape[axis] * want.strides[axis];
      rest /= want.shape[axis];
    }
    const int64_t bytes = BytesPerElement(want.dtype);
    CompareRow(got.as<std::byte>() + at_got * bytes, want.as<std::byte>() + at_want * bytes,
               want.dtype, want.shape[last], difference);
  }
}

void CompareChoice(std::span<const int32_t> got, std::span<const int32_t> want,
                   std::span<const float> scores, OpDifference& difference) {
  ++difference.rows;
  if (std::ranges::equal(got, want)) return;
  ++difference.different_choices;
  const auto chosen = [](std::span<const int32_t> row) {
    return row.first(static_cast<size_t>(std::ranges::find(row, -1) - row.begin()));
  };
  std::vector<int32_t> only_got, only_want;
  std::ranges::set_difference(chosen(got), chosen(want), std::back_inserter(only_got));
  std::ranges::set_difference(chosen(want), chosen(got), std::back_inserter(only_want));
  if (scores.empty() || only_got.size() != only_want.size() || only_got.empty()) {
    difference.worst_choice = std::numeric_limits<double>::infinity();
    return;
  }
  const auto score = [&](int32_t i) { return static_cast<double>(scores[static_cast<size_t>(i)]); };
  double lowest_want = HUGE_VAL, highest_got = -HUGE_VAL, largest = 0;
  for (const int32_t i : only_want) lowest_want = std::min(lowest_want, score(i));
  for (const int32_t i : only_got) highest_got = std::max(highest_got, score(i));
  for (const float s : scores) largest = std::max(largest, std::fabs(static_cast<double>(s)));
  difference.worst_choice =
      std::max(difference.worst_choice, (lowest_want - highest_got) / largest);
}

}  // namespace lodestone

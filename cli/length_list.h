#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// "a,b": the parts, empty ones included; they point into `text`.
std::vector<std::string_view> SplitAtCommas(std::string_view text);

// "1..40,508..516,10500": numbers and inclusive ranges, in the order given. INVALID_ARGUMENT, with
// the part that is wrong, for anything else, for numbers below 1 and for more than a million.
absl::StatusOr<std::vector<int64_t>> ParseLengthList(std::string_view text);

// `count` lengths in a row with `base` in their middle: base - count / 2 and up. INVALID_ARGUMENT
// if the first is below 1 or the last above the greatest length.
absl::StatusOr<std::vector<int64_t>> LengthsAround(int64_t base, int64_t count);

// "0,0.25,1": numbers in [0, 1].
absl::StatusOr<std::vector<double>> ParseDepthList(std::string_view text);

}  // namespace lodestone

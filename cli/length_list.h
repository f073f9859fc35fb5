#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// "1..40,508..516,10500": numbers and inclusive ranges, in the order given. INVALID_ARGUMENT, with
// the part that is wrong, for anything else, for numbers below 1 and for more than a million.
absl::StatusOr<std::vector<int64_t>> ParseLengthList(std::string_view text);

// "0,0.25,1": numbers in [0, 1].
absl::StatusOr<std::vector<double>> ParseDepthList(std::string_view text);

}  // namespace lodestone

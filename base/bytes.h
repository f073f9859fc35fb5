// Sizes in bytes: arithmetic that cannot wrap, and text for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <absl/status/statusor.h>

namespace lodestone {

// OUT_OF_RANGE, with both values, instead of wrapping.
absl::StatusOr<uint64_t> CheckedAdd(uint64_t a, uint64_t b);
absl::StatusOr<uint64_t> CheckedMul(uint64_t a, uint64_t b);

// "812 B", "12.3 MiB", "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

// "64MiB", "1.5GiB", "1000kB", "4096": binary (KiB MiB GiB TiB) or decimal (kB MB GB TB) units, a
// space before the unit is allowed. INVALID_ARGUMENT for anything else, also for more than 2^63-1
// bytes and for a fraction of a byte.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

}  // namespace lodestone

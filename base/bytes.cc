#include "base/bytes.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include <absl/strings/str_cat.h>

namespace lodestone {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};

constexpr Unit kUnits[] = {
    {"B", 1},
    {"", 1},
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
    {"kB", 1000},
    {"MB", 1000 * 1000},
    {"GB", 1000 * 1000 * 1000},
    {"TB", int64_t{1000} * 1000 * 1000 * 1000},
};

absl::Status BadSize(std::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(text), "' is not a size (", why,
                                                 "): write for example 64MiB, 1.5GiB or 4096"));
}

}  // namespace

absl::StatusOr<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    return absl::OutOfRangeError(absl::StrCat(a, " + ", b, " does not fit in 64 bits"));
  }
  return sum;
}

absl::StatusOr<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    return absl::OutOfRangeError(absl::StrCat(a, " * ", b, " does not fit in 64 bits"));
  }
  return product;
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kNames)) {  // 1023.95 would print as 1024.0
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %s", value, kNames[unit]);
  return text;
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  const size_t number_end = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, number_end);
  std::string_view unit_name =
      number_end == std::string_view::npos ? std::string_view() : text.substr(number_end);
  if (unit_name.size() > 1 && unit_name.front() == ' ') unit_name.remove_prefix(1);

  const Unit* unit = nullptr;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == unit_name) unit = &candidate;
  }
  if (unit == nullptr) return BadSize(text, "unknown unit");

  uint64_t whole = 0;
  const char* end = number.data() + number.size();
  if (std::from_chars(number.data(), end, whole).ptr == end && !number.empty()) {
    const absl::StatusOr<uint64_t> bytes = CheckedMul(whole, static_cast<uint64_t>(unit->bytes));
    if (!bytes.ok() || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return BadSize(text, "more than 2^63-1 bytes");
    }
    return static_cast<int64_t>(*bytes);
  }
  double fraction = 0;
  if (number.empty() || std::from_chars(number.data(), end, fraction).ptr != end) {
    return BadSize(text, "no number");
  }
  const double bytes = fraction * static_cast<double>(unit->bytes);
  if (bytes >= 0x1p63) return BadSize(text, "more than 2^63-1 bytes");
  if (bytes != std::floor(bytes)) return BadSize(text, "a fraction of a byte");
  return static_cast<int64_t>(bytes);
}

}  // namespace lodestone

#include "base/config_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/bytes.h"
#include "base/status_macros.h"

namespace lodestone {
namespace {

struct DurationUnit {
  std::string_view name;
  int64_t ms;
};
constexpr DurationUnit kDurationUnits[] = {
    {"h", 3600 * 1000}, {"m", 60 * 1000}, {"s", 1000}, {"ms", 1}};

absl::Status Unexpected(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is not ", std::string(expected)));
}

template <typename T>
bool ParseNumber(std::string_view text, T* value) {
  const char* end = text.data() + text.size();
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && !text.empty();
}

absl::Status ParseInto(std::string_view text, bool* out) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") {
    *out = true;
  } else if (text == "false" || text == "0" || text == "no" || text == "off") {
    *out = false;
  } else {
    return Unexpected(text, "true or false");
  }
  return absl::OkStatus();
}

absl::Status ParseInto(std::string_view text, int64_t* out) {
  return ParseNumber(text, out) ? absl::OkStatus() : Unexpected(text, "a whole number");
}

absl::Status ParseInto(std::string_view text, double* out) {
  if (!ParseNumber(text, out) || !std::isfinite(*out)) return Unexpected(text, "a number");
  return absl::OkStatus();
}

absl::Status ParseInto(std::string_view text, ByteSize* out) {
  ASSIGN_OR_RETURN(out->bytes, ParseBytes(text));
  return absl::OkStatus();
}

absl::Status ParseInto(std::string_view text, std::chrono::milliseconds* out) {
  ASSIGN_OR_RETURN(*out, ParseDuration(text));
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

std::string Format(bool value) { return value ? "true" : "false"; }
std::string Format(int64_t value) { return absl::StrCat(value); }
std::string Format(double value) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}
std::string Format(const std::string& value) { return Quoted(value); }
std::string Format(std::chrono::milliseconds value) { return Quoted(FormatDuration(value)); }

std::string Format(ByteSize value) {
  constexpr std::string_view kUnits[] = {"TiB", "GiB", "MiB", "KiB"};
  int shift = 40;
  for (std::string_view unit : kUnits) {
    if (value.bytes != 0 && value.bytes % (int64_t{1} << shift) == 0) {
      return Quoted(absl::StrCat(value.bytes >> shift, std::string(unit)));
    }
    shift -= 10;
  }
  return absl::StrCat(value.bytes);
}

std::string Format(const std::vector<std::string>& values) {
  return absl::StrCat("[",
                      absl::StrJoin(values, ", ",
                                    [](std::string* out, const std::string& value) {
                                      absl::StrAppend(out, Quoted(value));
                                    }),
                      "]");
}

absl::Status CheckAllowed(const ConfigField& field, const std::string& text) {
  const std::vector<std::string>& allowed = field.traits.allowed;
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), text) != allowed.end()) {
    return absl::OkStatus();
  }
  return Unexpected(text, absl::StrCat("one of ", absl::StrJoin(allowed, ", ")));
}

// Levenshtein's distance: insertions, deletions and replacements.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  constexpr std::string_view kExpected = "a duration: write for example 500ms, 5s, 2m or 1h";
  if (text == "0") return std::chrono::milliseconds(0);
  const size_t number_end = text.find_first_not_of("0123456789.");
  if (number_end == text.npos) return Unexpected(text, kExpected);
  for (const DurationUnit& unit : kDurationUnits) {
    if (text.substr(number_end) != unit.name) continue;
    double number = 0;
    if (!ParseNumber(text.substr(0, number_end), &number)) return Unexpected(text, kExpected);
    const double ms = number * static_cast<double>(unit.ms);
    if (ms != std::floor(ms)) return Unexpected(text, "a whole number of milliseconds");
    // Far beyond any use; a deadline so far ahead must still fit in nanoseconds.
    constexpr double kLongestMs = 100.0 * 365 * 24 * 3600 * 1000;
    if (ms > kLongestMs) return Unexpected(text, "a duration below 100 years");
    return std::chrono::milliseconds(static_cast<int64_t>(ms));
  }
  return Unexpected(text, kExpected);
}

std::string FormatDuration(std::chrono::milliseconds duration) {
  for (const DurationUnit& unit : kDurationUnits) {
    if (duration.count() != 0 && duration.count() % unit.ms == 0) {
      return absl::StrCat(duration.count() / unit.ms, std::string(unit.name));
    }
  }
  return "0s";
}

absl::Status SetField(const ConfigField& field, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) RETURN_IF_ERROR(CheckAllowed(field, text));
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&field.ref)) {
    **list = texts;
    return absl::OkStatus();
  }
  if (texts.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(texts.size(), " values given, 1 expected"));
  }
  return std::visit(
      [&](auto* member) -> absl::Status {
        using Member = std::remove_pointer_t<decltype(member)>;
        if constexpr (std::is_same_v<Member, std::string>) {
          *member = texts[0];
        } else if constexpr (!std::is_same_v<Member, std::vector<std::string>>) {
          return ParseInto(texts[0], member);
        }
        return absl::OkStatus();
      },
      field.ref);
}

std::string FormatField(const ConfigField& field) {
  const std::string value =
      std::visit([](const auto* member) { return Format(*member); }, field.ref);
  const bool is_empty = value == "\"\"" || value == "[]";
  return field.traits.secret && !is_empty ? "\"<hidden>\"" : value;
}

bool IsList(const ConfigField& field) {
  return std::holds_alternative<std::vector<std::string>*>(field.ref);
}

bool IsBool(const ConfigField& field) { return std::holds_alternative<bool*>(field.ref); }

std::string ValuePlaceholder(const ConfigField& field) {
  if (!field.traits.allowed.empty()) return absl::StrJoin(field.traits.allowed, "|");
  if (std::holds_alternative<int64_t*>(field.ref)) return "N";
  if (std::holds_alternative<double*>(field.ref)) return "NUMBER";
  if (std::holds_alternative<ByteSize*>(field.ref)) return "SIZE";
  if (std::holds_alternative<std::chrono::milliseconds*>(field.ref)) return "TIME";
  return "TEXT";
}

std::string NearestName(const std::string& name, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace lodestone

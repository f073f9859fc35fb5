#include "base/config_file.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "base/status_macros.h"

namespace lodestone {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  absl::StatusOr<std::vector<ConfigFileEntry>> Parse() {
    std::vector<ConfigFileEntry> entries;
    for (SkipBlank(); !rest_.empty(); SkipBlank()) {
      ASSIGN_OR_RETURN(ConfigFileEntry entry, ParseEntry());
      const auto earlier = std::find_if(entries.begin(), entries.end(),
                                        [&](const auto& other) { return other.key == entry.key; });
      if (earlier != entries.end()) {
        return absl::InvalidArgumentError(absl::StrCat("line ", entry.line, ": ", entry.key,
                                                       " is already set in line ", earlier->line));
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }

  char Take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == '\n') ++line_;
    return c;
  }

  void SkipSpaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t')) Take();
  }

  bool AtLineEnd() const {
    return rest_.empty() || rest_.front() == '\n' || rest_ == "\r" || rest_.starts_with("\r\n");
  }

  // Spaces, line ends and comments.
  void SkipBlank() {
    while (!rest_.empty()) {
      if (rest_.front() == '#') {
        while (!rest_.empty() && rest_.front() != '\n') Take();
      } else if (std::string_view(" \t\r\n").find(rest_.front()) != std::string_view::npos) {
        Take();
      } else {
        return;
      }
    }
  }

  absl::StatusOr<ConfigFileEntry> ParseEntry() {
    ConfigFileEntry entry;
    entry.line = line_;
    if (rest_.front() == '[') return Error("tables are not supported, write key = value");
    while (!rest_.empty() && IsKeyChar(rest_.front())) entry.key.push_back(Take());
    SkipSpaces();
    if (entry.key.empty() || rest_.empty() || rest_.front() != '=') {
      return Error("expected key = value");
    }
    Take();
    SkipSpaces();
    if (!rest_.empty() && rest_.front() == '[') {
      ASSIGN_OR_RETURN(entry.values, ParseArray());
    } else {
      ASSIGN_OR_RETURN(std::string value, ParseValue());
      entry.values.push_back(std::move(value));
    }
    SkipSpaces();
    if (!AtLineEnd() && rest_.front() != '#') {
      return Error(absl::StrCat("unexpected text after the value of ", entry.key));
    }
    return entry;
  }

  absl::StatusOr<std::vector<std::string>> ParseArray() {
    std::vector<std::string> values;
    Take();  // '['
    for (SkipBlank(); !rest_.empty(); SkipBlank()) {
      if (rest_.front() == ']') {
        Take();
        return values;
      }
      ASSIGN_OR_RETURN(std::string value, ParseValue());
      values.push_back(std::move(value));
      SkipBlank();
      if (!rest_.empty() && rest_.front() == ',') {
        Take();
      } else if (!rest_.empty() && rest_.front() != ']') {
        return Error("expected , or ] in the array");
      }
    }
    return Error("the array has no end");
  }

  absl::StatusOr<std::string> ParseValue() {
    if (rest_.empty()) return Error("the value is missing");
    if (rest_.front() == '"') return ParseBasicString();
    if (rest_.front() == '\'') return ParseLiteralString();
    std::string word;
    while (!rest_.empty() && IsBareChar(rest_.front())) word.push_back(Take());
    if (word.empty()) return Error("the value is missing or needs quotes");
    return word;
  }

  absl::StatusOr<std::string> ParseLiteralString() {
    Take();
    const size_t end = rest_.find_first_of("'\n");
    if (end == rest_.npos || rest_[end] == '\n') return Error("the string has no end");
    std::string value(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }

  absl::StatusOr<std::string> ParseBasicString() {
    Take();
    std::string value;
    while (!rest_.empty() && rest_.front() != '\n') {
      const char c = Take();
      if (c == '"') return value;
      if (c != '\\') {
        value.push_back(c);
        continue;
      }
      RETURN_IF_ERROR(TakeEscape(value));
    }
    return Error("the string has no end");
  }

  // Behind the backslash.
  absl::Status TakeEscape(std::string& value) {
    constexpr std::string_view kEscapes = "\"\\nrtbf";
    constexpr std::string_view kMeanings = "\"\\\n\r\t\b\f";
    const char c = rest_.empty() || rest_.front() == '\n' ? '\0' : Take();
    if (const size_t which = kEscapes.find(c); which != kEscapes.npos) {
      value.push_back(kMeanings[which]);
      return absl::OkStatus();
    }
    constexpr size_t kDigits = 4;
    uint32_t code_point = 0;
    const auto [end, error] = std::from_chars(
        rest_.data(), rest_.data() + std::min(kDigits, rest_.size()), code_point, 16);
    if (c != 'u' || error != std::errc() || end != rest_.data() + kDigits) {
      return Error("unknown escape in the string");
    }
    rest_.remove_prefix(kDigits);
    // --print-config writes control characters like this, and nothing else.
    if (code_point > 0x7F) return Error("write the character itself instead of its \\u escape");
    value.push_back(static_cast<char>(code_point));
    return absl::OkStatus();
  }

  static bool IsKeyChar(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  static bool IsBareChar(char c) { return IsKeyChar(c) || c == '.' || c == '+' || c == ':'; }

  std::string_view rest_;
  int line_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<ConfigFileEntry>> ParseConfigFile(std::string_view text) {
  return Parser(text).Parse();
}

}  // namespace lodestone

#include "text/python_json.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/charconv.h>
#include <absl/strings/str_cat.h>

#include "base/status_macros.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// What Python's repr gives for a float: the fewest digits that read back equal, an exponent below
// 1e-4 and from 1e16 on.
std::string PythonFloat(double value) {
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char buffer[32];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(buffer + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (IsDigit(c)) digits.push_back(c);
  }
  const std::string sign = text[0] == '-' ? "-" : "";
  if (exponent < 0) {
    return absl::StrCat(sign, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  }
  const auto whole = static_cast<size_t>(exponent + 1);
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.substr(whole);
  return absl::StrCat(sign, digits.substr(0, whole), ".", fraction.empty() ? "0" : fraction);
}

// A recursive-descent reader. Errors carry the byte where reading stopped.
class Reader {
 public:
  explicit Reader(std::string_view json) : json_(json) {}

  absl::StatusOr<std::string> ReadDocument() {
    ASSIGN_OR_RETURN(std::string value, ReadValue());
    RETURN_IF_ERROR(ExpectEnd());
    return value;
  }

  absl::StatusOr<std::vector<JsonMember>> ReadObjectDocument() {
    SkipSpace();
    if (Peek() != '{') return Error("an object is expected");
    ASSIGN_OR_RETURN(std::vector<JsonMember> members, ReadMembers());
    RETURN_IF_ERROR(ExpectEnd());
    return members;
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("byte ", at_, ": ", std::string(what)));
  }
  // 0 at the end; a NUL in the text is no part of JSON either.
  char Peek() const { return at_ < json_.size() ? json_[at_] : '\0'; }
  bool Take(char c) {
    if (Peek() != c || at_ == json_.size()) return false;
    ++at_;
    return true;
  }
  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') ++at_;
  }
  absl::Status ExpectEnd() {
    SkipSpace();
    return at_ == json_.size() ? absl::OkStatus() : Error("more text follows the value");
  }

  absl::StatusOr<std::string> ReadValue() {
    SkipSpace();
    const char c = Peek();
    if (c == '{') return ReadObject();
    if (c == '[') return ReadArray();
    if (c == '"') {
      ASSIGN_OR_RETURN(const std::string text, ReadString());
      return JsonQuote(text);
    }
    if (c == '-' || IsDigit(c)) return ReadNumber();
    for (const std::string_view word : {"true", "false", "null"}) {
      if (json_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return std::string(word);
      }
    }
    return Error("a value is expected");
  }

  absl::StatusOr<std::string> ReadObject() {
    ASSIGN_OR_RETURN(const std::vector<JsonMember> members, ReadMembers());
    std::string out = "{";
    for (const JsonMember& member : members) {
      absl::StrAppend(&out, out.size() > 1 ? ", " : "", JsonQuote(member.key), ": ",
                      member.is_string ? JsonQuote(member.value) : member.value);
    }
    return out + "}";
  }

  absl::StatusOr<std::vector<JsonMember>> ReadMembers() {
    RETURN_IF_ERROR(Enter());
    std::vector<JsonMember> members;
    absl::flat_hash_map<std::string, size_t> places;
    SkipSpace();
    while (!Take('}')) {
      if (!members.empty() && !Take(',')) return Error("',' or '}' is expected");
      SkipSpace();
      JsonMember member;
      ASSIGN_OR_RETURN(member.key, ReadString());
      SkipSpace();
      if (!Take(':')) return Error("':' is expected");
      SkipSpace();
      member.is_string = Peek() == '"';
      ASSIGN_OR_RETURN(member.value, member.is_string ? ReadString() : ReadValue());
      SkipSpace();
      const auto [place, is_new] = places.emplace(member.key, members.size());
      if (is_new) {
        members.push_back(std::move(member));
      } else {
        members[place->second] = std::move(member);
      }
    }
    --depth_;
    return members;
  }

  absl::StatusOr<std::string> ReadArray() {
    RETURN_IF_ERROR(Enter());
    std::string out = "[";
    SkipSpace();
    while (!Take(']')) {
      if (out.size() > 1) {
        if (!Take(',')) return Error("',' or ']' is expected");
        out += ", ";
      }
      ASSIGN_OR_RETURN(const std::string value, ReadValue());
      out += value;
      SkipSpace();
    }
    --depth_;
    return out + "]";
  }

  // Takes the bracket that opens an array or object.
  absl::Status Enter() {
    if (++depth_ > kMaxJsonDepth) {
      return Error(absl::StrCat("nested deeper than ", kMaxJsonDepth));
    }
    ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadNumber() {
    const size_t begin = at_;
    Take('-');
    if (!IsDigit(Peek())) return Error("a digit is expected");
    const bool zero = Take('0');
    while (!zero && IsDigit(Peek())) ++at_;
    const size_t whole_end = at_;
    if (Take('.')) RETURN_IF_ERROR(ReadDigits());
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      RETURN_IF_ERROR(ReadDigits());
    }
    const std::string_view text = json_.substr(begin, at_ - begin);
    if (at_ == whole_end) return std::string(text == "-0" ? "0" : text);
    double value = 0;
    const absl::from_chars_result read =
        absl::from_chars(text.data(), text.data() + text.size(), value);
    if (read.ec == std::errc::result_out_of_range && std::abs(value) > 1) {
      return value < 0 ? "-Infinity" : "Infinity";  // not JSON, but what Python writes
    }
    return PythonFloat(value);
  }

  absl::Status ReadDigits() {
    if (!IsDigit(Peek())) return Error("a digit is expected");
    while (IsDigit(Peek())) ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadString() {
    if (!Take('"')) return Error("a string is expected");
    std::string out;
    while (!Take('"')) {
      if (at_ == json_.size()) return Error("the string has no end");
      const char c = json_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) return Error("a control character in a string");
      if (c != '\\') {
        out.push_back(c);
        continue;
      }
      RETURN_IF_ERROR(ReadEscape(out));
    }
    return out;
  }

  absl::Status ReadEscape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char name = Peek();
    ++at_;
    if (name == 'u') return ReadUnicodeEscape(out);
    const size_t index = kNames.find(name);
    if (index == std::string_view::npos) return Error("an unknown escape");
    out.push_back(kValues[index]);
    return absl::OkStatus();
  }

  absl::Status ReadUnicodeEscape(std::string& out) {
    ASSIGN_OR_RETURN(uint32_t code_point, ReadHex());
    if (code_point >= 0xD800 && code_point < 0xDC00 && json_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      ASSIGN_OR_RETURN(const uint32_t low, ReadHex());
      if (low < 0xDC00 || low >= 0xE000) return Error("a lone surrogate");
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
    } else if (code_point >= 0xD800 && code_point < 0xE000) {
      return Error("a lone surrogate");
    }
    AppendUtf8(code_point, out);
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ReadHex() {
    uint32_t value = 0;
    const std::string_view digits = json_.substr(at_, 4);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + 4) {
      return Error("four hexadecimal digits are expected");
    }
    at_ += 4;
    return value;
  }

  std::string_view json_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<std::string> PythonJson(std::string_view json) {
  if (!ValidateUtf8(json)) return absl::InvalidArgumentError("is not valid UTF-8");
  return Reader(json).ReadDocument();
}

bool IsJson(std::string_view json) { return PythonJson(json).ok(); }

std::optional<std::vector<JsonMember>> JsonObjectMembers(std::string_view json) {
  if (!ValidateUtf8(json)) return std::nullopt;
  absl::StatusOr<std::vector<JsonMember>> members = Reader(json).ReadObjectDocument();
  if (!members.ok()) return std::nullopt;
  return *std::move(members);
}

std::string JsonEscape(std::string_view utf8) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(utf8.size());
  for (const char c : utf8) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
        } else {
          out.push_back(c);
        }
    }
  }
  return out;
}

std::string JsonQuote(std::string_view utf8) { return absl::StrCat("\"", JsonEscape(utf8), "\""); }

}  // namespace lodestone

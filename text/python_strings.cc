#include "text/python_strings.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "text/utf8.h"

namespace lodestone {
namespace {

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  std::vector<PythonString> Run() {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == '#') {
        at_ = std::min(source_.find('\n', at_), source_.size());
      } else if (c == '"' || c == '\'') {
        ReadString(/*raw=*/false);
      } else if (IsWordCharacter(c)) {
        ReadWord();
      } else {
        ReadPunctuation(c);
      }
    }
    return std::move(strings_);
  }

 private:
  void ReadWord() {
    size_t end = at_;
    while (end < source_.size() && IsWordCharacter(source_[end])) ++end;
    const std::string_view word = source_.substr(at_, end - at_);
    at_ = end;
    const bool at_quote = at_ < source_.size() && (source_[at_] == '"' || source_[at_] == '\'');
    if (at_quote && word.size() <= 2 &&
        word.find_first_not_of("rRbBuUfF") == std::string_view::npos) {
      return ReadString(word.find_first_of("rR") != std::string_view::npos);
    }
    if (first_word_.empty()) first_word_ = word;
    name_.clear();
    joins_ = false;
  }

  // Parentheses may stand between a name and its strings, and between these; the end of a line
  // too, if parentheses are open or it is escaped.
  void ReadPunctuation(char c) {
    ++at_;
    if (c == '\\') {
      at_ = std::min(at_ + 1, source_.size());
    } else if (c == '\n') {
      EndLine();
    } else if (c == '=' && !source_.substr(at_).starts_with('=')) {
      name_ = only_name_ ? first_word_ : "";
      joins_ = false;
    } else if (c == '(') {
      ++depth_;
      only_name_ = false;
    } else if (!IsSpace(c)) {
      if (c == ')' && depth_ > 0) --depth_;
      if (c != ':') only_name_ = false;  // also by the first half of "=="
      name_.clear();
      joins_ = false;
    }
  }

  void EndLine() {
    first_word_.clear();
    only_name_ = true;
    if (depth_ > 0) return;
    name_.clear();
    joins_ = false;
  }

  void ReadString(bool raw) {
    const std::string triple(3, source_[at_]);
    const bool is_triple = source_.substr(at_).starts_with(triple);
    const std::string_view close = is_triple ? std::string_view(triple) : source_.substr(at_, 1);
    at_ += close.size();
    std::string value;
    while (at_ < source_.size() && !source_.substr(at_).starts_with(close)) {
      if (source_[at_] == '\n' && !is_triple) break;
      if (source_[at_] == '\\' && at_ + 1 < source_.size()) {
        ReadEscape(raw, value);
      } else {
        value.push_back(source_[at_++]);
      }
    }
    at_ = std::min(source_.size(), at_ + close.size());
    if (joins_) {
      strings_.back().value += value;
    } else {
      strings_.push_back({name_, std::move(value)});
    }
    name_.clear();
    joins_ = true;
  }

  void ReadEscape(bool raw, std::string& value) {
    const char name = source_[at_ + 1];
    if (raw) {
      value += source_.substr(at_, 2);
      at_ += 2;
      return;
    }
    at_ += 2;
    static constexpr std::string_view kNames = "\\'\"abfnrtv";
    static constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const size_t index = kNames.find(name);
    if (index != std::string_view::npos) {
      value.push_back(kValues[index]);
    } else if (name == 'x' || name == 'u' || name == 'U') {
      ReadHex(name == 'x' ? 2 : name == 'u' ? 4 : 8, value);
    } else if (name != '\n') {  // an escaped newline is no text
      value += {'\\', name};
    }
  }

  void ReadHex(size_t digits, std::string& value) {
    uint32_t code_point = 0;
    const std::string_view text = source_.substr(at_, digits);
    std::from_chars(text.data(), text.data() + text.size(), code_point, 16);
    at_ += text.size();
    const bool is_character =
        code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF);
    AppendUtf8(is_character ? code_point : 0xFFFD, value);
  }

  std::string_view source_;
  size_t at_ = 0;
  bool joins_ = false;      // the next string belongs to the last one
  int depth_ = 0;           // parentheses that are open
  std::string first_word_;  // of this line
  bool only_name_ = true;   // nothing but words and colons so far in this line
  std::string name_;        // assigned by the next string
  std::vector<PythonString> strings_;
};

}  // namespace

std::vector<PythonString> PythonStrings(std::string_view source) { return Scanner(source).Run(); }

}  // namespace lodestone

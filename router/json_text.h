#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/logging.h"

namespace lodestone {

// Writes JSON text front to back; commas are its job, matching Open and Close the caller's:
//   JsonText().Open("{").Key("id").Int(3).Close("}").Take()  ->  {"id":3}
// Strings may hold any bytes: what is not UTF-8 becomes U+FFFD.
class JsonText {
 public:
  JsonText& Open(std::string_view bracket) {  // "{" or "["
    Separate();
    text_ += bracket;
    needs_comma_ = false;
    return *this;
  }
  JsonText& Close(std::string_view bracket) {
    text_ += bracket;
    needs_comma_ = true;
    return *this;
  }
  JsonText& Key(std::string_view key) {
    Separate();
    AppendJsonString(key, &text_);
    text_ += ':';
    needs_comma_ = false;
    return *this;
  }
  JsonText& String(std::string_view value) {
    Separate();
    AppendJsonString(value, &text_);
    return Done();
  }
  JsonText& Int(int64_t value) { return Raw(std::to_string(value)); }
  JsonText& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonText& Null() { return Raw("null"); }
  // The shortest text that reads back as `value`; null if it is not finite.
  JsonText& Number(double value) { return Shortest(value); }
  JsonText& Number(float value) { return Shortest(value); }
  // `json` is a whole JSON value.
  JsonText& Raw(std::string_view json) {
    Separate();
    text_ += json;
    return Done();
  }
  const std::string& text() const { return text_; }
  std::string Take() { return std::move(text_); }

 private:
  template <typename T>
  JsonText& Shortest(T value) {
    if (!std::isfinite(value)) return Null();
    char buffer[32];
    const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
    return Raw(std::string_view(buffer, static_cast<size_t>(end.ptr - buffer)));
  }
  void Separate() {
    if (needs_comma_) text_ += ',';
  }
  JsonText& Done() {
    needs_comma_ = true;
    return *this;
  }

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace lodestone

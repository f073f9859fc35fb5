#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lodestone {

// Number of leading bytes that are well-formed UTF-8 (Unicode 15, table 3-7): surrogates, overlong
// forms and values above U+10FFFF are not. Equals text.size() when all of it is valid.
size_t ValidUtf8Prefix(std::string_view text);

inline bool ValidateUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

// `text` with every maximal ill-formed part replaced by one U+FFFD: what a browser, Python's
// errors="replace" and Rust's from_utf8_lossy produce. A lone surrogate that a JSON parser let
// through as three bytes becomes three U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

// Appends `code_point` (at most U+10FFFF, not a surrogate) as UTF-8.
void AppendUtf8(uint32_t code_point, std::string& out);

// ReplaceInvalidUtf8 over a stream of pieces: the outputs of all calls, joined, equal
// ReplaceInvalidUtf8 of the joined pieces. Not thread-safe.
class Utf8Stream {
 public:
  // The text that is complete after `bytes`; an unfinished code point is held back.
  std::string Push(std::string_view bytes);
  // One U+FFFD if a code point is unfinished, else nothing. Ready for a new stream afterwards.
  std::string Finish();

 private:
  void Step(unsigned char byte, std::string& out);

  std::string pending_;       // the bytes of the unfinished code point, at most 3
  int needed_ = 0;            // continuation bytes still missing
  unsigned char low_ = 0x80;  // range of the next continuation byte
  unsigned char high_ = 0xBF;
};

}  // namespace lodestone

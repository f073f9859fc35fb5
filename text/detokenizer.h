#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace lodestone {

// Which added tokens become text on the way back.
enum class AddedTokenText {
  kSkipSpecial,  // those the file marks as special are left out: what decoders do by default
  kSkipAll,      // only ordinary tokens give text
  kKeep,         // all are written out
};

// Token ids to text, one at a time, never half a character. All outputs joined equal Decode of all
// ids, for any ids: bytes that are not UTF-8 become U+FFFD exactly as they would there; ids that no
// token has give nothing. Not thread-safe.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer,  // not owned; must outlive this
                       AddedTokenText added = AddedTokenText::kSkipSpecial)
      : tokenizer_(tokenizer), added_(added) {}

  // The text that is complete after this token; an unfinished character is held back.
  std::string Push(int32_t token);
  // What is still held back: nothing or one U+FFFD. Ready for a new text afterwards.
  std::string Finish() { return stream_.Finish(); }

 private:
  const Tokenizer* tokenizer_;
  AddedTokenText added_;
  Utf8Stream stream_;
};

// The text of all `tokens` at once.
std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                   AddedTokenText added = AddedTokenText::kSkipSpecial);

}  // namespace lodestone

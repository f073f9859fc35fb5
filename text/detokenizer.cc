#include "text/detokenizer.h"

#include <string_view>

namespace lodestone {
namespace {

std::string_view TextBytes(const Tokenizer& tokenizer, int32_t token, AddedTokenText added) {
  const bool skipped = (added == AddedTokenText::kSkipSpecial && tokenizer.IsSpecial(token)) ||
                       (added == AddedTokenText::kSkipAll && tokenizer.IsAdded(token));
  return skipped ? std::string_view() : tokenizer.TokenBytes(token);
}

}  // namespace

std::string Detokenizer::Push(int32_t token) {
  return stream_.Push(TextBytes(*tokenizer_, token, added_));
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                   AddedTokenText added) {
  std::string bytes;
  for (const int32_t token : tokens) bytes += TextBytes(tokenizer, token, added);
  return ReplaceInvalidUtf8(bytes);
}

}  // namespace lodestone

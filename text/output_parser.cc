#include "text/output_parser.h"

#include <utility>

namespace lodestone {

OutputParser::OutputParser(const ChatFormat* format, ChatMode mode, EndToken end_token)
    : tokens_(format->tokens()),
      detokenizer_(&format->tokenizer(), AddedTokenText::kSkipAll),
      end_token_(end_token),
      in_reasoning_(mode == ChatMode::kThinking) {}

ChatDelta OutputParser::ToCurrentPart(std::string text) const {
  ChatDelta delta;
  (in_reasoning_ ? delta.reasoning : delta.content) = std::move(text);
  return delta;
}

ChatDelta OutputParser::Push(int32_t token) {
  if (ended_) return {};
  if (token == tokens_.eos && end_token_ == EndToken::kEnds) {
    ended_ = true;
    return ToCurrentPart(detokenizer_.Finish());
  }
  if (token == tokens_.think_end && in_reasoning_) {
    ChatDelta delta = ToCurrentPart(detokenizer_.Finish());
    in_reasoning_ = false;
    return delta;
  }
  return ToCurrentPart(detokenizer_.Push(token));
}

ChatDelta OutputParser::Finish() {
  return ended_ ? ChatDelta() : ToCurrentPart(detokenizer_.Finish());
}

}  // namespace lodestone

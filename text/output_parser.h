#pragma once

#include <cstdint>
#include <string>

#include "text/chat_format.h"
#include "text/detokenizer.h"

namespace lodestone {

// What one step of a reply adds to it, as text for the client.
struct ChatDelta {
  std::string reasoning;
  std::string content;
};

// Token ids of a reply to reasoning and content. In thinking mode the reply is reasoning up to
// `</think>` and content from there; in chat mode all is content. Decided by token id: the same
// characters as ordinary text change nothing. Other control tokens give no text. The end token ends
// the reply, unless it is to be ignored; later tokens give nothing. Any split of the same tokens
// gives the same texts. Not thread-safe.
class OutputParser {
 public:
  enum class EndToken { kEnds, kIgnored };

  // `format` is not owned and must outlive this.
  OutputParser(const ChatFormat* format, ChatMode mode, EndToken end_token = EndToken::kEnds);

  // The text that is complete after this token.
  ChatDelta Push(int32_t token);
  // What is still held back (half a character as U+FFFD). Call once, at the end.
  ChatDelta Finish();

  bool in_reasoning() const { return in_reasoning_; }
  bool ended() const { return ended_; }

 private:
  ChatDelta ToCurrentPart(std::string text) const;

  const ChatTokens tokens_;
  Detokenizer detokenizer_;
  const EndToken end_token_;
  bool in_reasoning_;
  bool ended_ = false;
};

}  // namespace lodestone

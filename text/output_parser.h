#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/tool_call_parser.h"
#include "text/utf8.h"

namespace lodestone {

// What one step of a reply adds to it, for the client.
struct ChatDelta {
  std::string reasoning{};
  std::string content{};
  std::vector<ToolCallDelta> tool_calls{};  // in order; several may belong to one call
};

// A whole reply: all its deltas joined.
struct ChatReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;

  void Add(const ChatDelta& delta);
};

// Token ids of a reply to reasoning, content and tool calls. In thinking mode the reply is
// reasoning up to `</think>` and content from there; in chat mode all is content. Decided by token
// id: the same characters as ordinary text change nothing. Other control tokens give no text. The
// end token ends the reply, unless it is to be ignored; later tokens give nothing. Any split of the
// same text into tokens, and of the tokens into calls of Push, gives the same joined deltas.
// Not thread-safe.
//
// Tool calls (the grammar is ToolCallParser's), if asked for:
// 1. A block opens with "<" and the markup token; up to two newlines before belong to it. Inside
//    reasoning it ends the reasoning with its first call.
// 2. Text that turns out to be no block, or no longer one, is raw text of the part that it stands
//    in, its markup tokens written out; calls sent before stay, an unfinished one unclosed. Text
//    after a block is content, and further blocks are read.
// 3. A reply that is cut off, without its end token, inside a block: what was not sent is dropped.
// 4. Inside a value other control tokens are text.
class OutputParser {
 public:
  enum class EndToken { kEnds, kIgnored };

  // `format` is not owned and must outlive this. With a `call_id_prefix` tool calls are parsed, and
  // the call i gets the id prefix + i; without, the markup token gives no text.
  // REQUIRES: with a prefix, format->tools_available().
  OutputParser(const ChatFormat* format, ChatMode mode, EndToken end_token = EndToken::kEnds,
               std::optional<std::string> call_id_prefix = std::nullopt);

  // What is complete after this token, or these.
  ChatDelta Push(int32_t token);
  ChatDelta Push(std::span<const int32_t> tokens);
  // What is still held back (half a character as U+FFFD). Call once, at the end.
  ChatDelta Finish();

  // The next token belongs to the reasoning, as far as is known.
  bool in_reasoning() const { return in_reasoning_; }
  bool ended() const { return ended_; }
  // The reply calls tools, and each of its calls is whole.
  bool calls_complete() const { return calls_.all_complete(); }

 private:
  void Take(int32_t token, ChatDelta& delta);
  void AddText(std::string_view text, ChatDelta& delta);
  void AddPlain(std::string_view piece, ChatDelta& delta);
  void AddToBlock(std::string_view piece, ChatDelta& delta);
  void FailBlock(ChatDelta& delta);
  void EndPart(ChatDelta& delta);
  void Emit(std::string_view text, ChatDelta& delta) const;

  const Tokenizer* tokenizer_;
  const ChatTokens tokens_;
  const EndToken end_token_;
  const bool parses_calls_;
  Utf8Stream stream_;
  std::string held_;    // the end of the text, which may open a block
  std::string opener_;  // of the open block, as long as no call of it was sent
  bool in_block_ = false;
  ToolCallParser calls_;
  bool in_reasoning_;
  bool ended_ = false;
};

}  // namespace lodestone

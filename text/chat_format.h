#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "text/tokenizer.h"
#include "text/vendor_texts.h"

namespace lodestone {

enum class ChatRole { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// "system", "developer", "user", "assistant", "tool", "latest_reminder"; else INVALID_ARGUMENT.
absl::StatusOr<ChatRole> ParseChatRole(std::string_view name);

// A call that the assistant made.
struct ToolCall {
  std::string id{};
  std::string name{};
  // The text of a JSON object. Other text is rendered as one parameter named "arguments".
  std::string arguments{};
};

// One message of a conversation. Texts are UTF-8 and are rendered verbatim, nothing is trimmed.
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content{};             // several text parts: joined by two newlines
  std::string reasoning_content{};   // assistant only
  std::string task{};                // user or developer: action, query, authority, domain, title,
                                     // read_url; assistant: title; empty: none
  bool without_eos = false;          // assistant: the turn is not finished, the model continues it
  std::vector<std::string> tools{};  // system or developer: the JSON text of each tool's
                                     // `function` object {"name", "description", "parameters"}
  std::string response_format{};     // system or developer: JSON text of an object; empty: none
  std::vector<ToolCall> tool_calls{};  // assistant only
  std::string tool_call_id{};          // tool only: the call whose result `content` is
};

// Declares `tools` (ChatMessage::tools) where the format wants them: on the first system message,
// or on an empty one that it puts in front. No tools: no change.
void DeclareTools(std::vector<std::string> tools, std::vector<ChatMessage>& messages);
// The same for a response format (ChatMessage::response_format).
void SetResponseFormat(std::string response_format, std::vector<ChatMessage>& messages);

enum class ChatMode { kChat, kThinking };
enum class ReasoningEffort { kNone, kLow, kHigh, kMax };  // none and low: no text of their own

struct ChatRenderOptions {
  ChatMode mode = ChatMode::kChat;
  ReasoningEffort effort = ReasoningEffort::kNone;  // in chat mode it has no effect
  // Of the turns before the last user message (thinking mode); not if any message declares tools.
  bool drop_reasoning = true;
  bool add_bos = true;
};

// The ids of the control tokens that the format uses.
struct ChatTokens {
  int32_t bos;
  int32_t eos;
  int32_t user;
  int32_t assistant;
  int32_t think_begin;
  int32_t think_end;
  std::optional<int32_t> markup;  // in the tags of tool calls; absent: the model has no tools
};

// Conversations to prompt ids in the DeepSeek-V4 format. Control tokens are spliced in as ids,
// never written into text, so nothing in a message can become one. The prompt ends where the model
// goes on: after a user message in `<Assistant></think>` (chat) or `<Assistant><think>` (thinking).
// Immutable after Create; safe from any thread.
class ChatFormat {
 public:
  // INVALID_ARGUMENT names the control token that the vocabulary lacks, or the text that is not
  // UTF-8. `texts` are the model's own (LoadVendorTexts); without them there are no tools, no
  // response formats and no effort kMax. `tokenizer` is not owned and must outlive this.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer* tokenizer, VendorTexts texts = {});

  // INVALID_ARGUMENT names the message by its index: no messages, text that is not UTF-8, a field
  // on a role that cannot have it, tools or a response format that are not JSON objects, tools of
  // any kind where tools_available() fails, a task that is unknown or lacks its token in this
  // vocabulary, a text that the model's files lack.
  absl::StatusOr<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages,
                                              const ChatRenderOptions& options) const;

  // INVALID_ARGUMENT says what this model lacks for declaring and calling tools.
  absl::Status tools_available() const;
  // The same for response formats, and for a reasoning effort in thinking mode.
  absl::Status response_formats_available() const;
  absl::Status effort_available(ReasoningEffort effort) const;

  const ChatTokens& tokens() const { return tokens_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  class Renderer;
  ChatFormat(const Tokenizer* tokenizer, ChatTokens tokens, VendorTexts texts);

  absl::Status Check(const std::vector<ChatMessage>& messages,
                     const ChatRenderOptions& options) const;
  absl::Status CheckTask(const ChatMessage& message) const;
  absl::Status CheckTools(const ChatMessage& message) const;

  const Tokenizer* tokenizer_;
  ChatTokens tokens_;
  std::optional<int32_t> latest_reminder_;
  VendorTexts texts_;
};

}  // namespace lodestone

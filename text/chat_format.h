#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "text/tokenizer.h"

namespace lodestone {

enum class ChatRole { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// "system", "developer", "user", "assistant", "tool", "latest_reminder"; else INVALID_ARGUMENT.
absl::StatusOr<ChatRole> ParseChatRole(std::string_view name);

// One message of a conversation. Texts are UTF-8 and are rendered verbatim, nothing is trimmed.
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content{};            // several text parts: joined by two newlines
  std::string reasoning_content{};  // assistant only
  std::string task{};               // user or developer: action, query, authority, domain, title,
                                    // read_url; empty: none
  bool without_eos = false;         // assistant: the turn is not finished, the model continues it
  bool uses_tools = false;          // declares or calls tools, or sets a response format
};

enum class ChatMode { kChat, kThinking };
enum class ReasoningEffort { kNone, kHigh, kMax };

struct ChatRenderOptions {
  ChatMode mode = ChatMode::kChat;
  ReasoningEffort effort = ReasoningEffort::kNone;  // in chat mode it has no effect
  bool drop_reasoning = true;  // of the turns before the last user message (thinking mode)
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
};

// Conversations to prompt ids in the DeepSeek-V4 format. Control tokens are spliced in as ids,
// never written into text, so nothing in a message can become one. The prompt ends where the model
// goes on: after a user message in `<Assistant></think>` (chat) or `<Assistant><think>` (thinking).
// Immutable after Create; safe from any thread.
class ChatFormat {
 public:
  // INVALID_ARGUMENT names the control token that the vocabulary lacks. `max_effort_text` is the
  // paragraph that asks for maximum effort, from the model's own files; empty: not available.
  // `tokenizer` is not owned and must outlive this.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer* tokenizer,
                                           std::string max_effort_text = "");

  // INVALID_ARGUMENT: no messages, text that is not UTF-8, tools (not supported yet), a task that
  // is unknown, lacks its token in this vocabulary or is on another role, effort kMax without its
  // text. The message's index is named.
  absl::StatusOr<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages,
                                              const ChatRenderOptions& options) const;

  const ChatTokens& tokens() const { return tokens_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  class Renderer;
  ChatFormat(const Tokenizer* tokenizer, ChatTokens tokens, std::string max_effort_text);

  absl::Status Check(const std::vector<ChatMessage>& messages,
                     const ChatRenderOptions& options) const;

  const Tokenizer* tokenizer_;
  ChatTokens tokens_;
  std::optional<int32_t> latest_reminder_;
  std::string max_effort_text_;
};

}  // namespace lodestone

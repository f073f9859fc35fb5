#include "text/chat_format.h"

#include <array>
#include <utility>

#include <absl/strings/str_cat.h>

#include "base/status_macros.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr std::array<std::pair<std::string_view, ChatRole>, 6> kRoles = {{
    {"system", ChatRole::kSystem},
    {"developer", ChatRole::kDeveloper},
    {"user", ChatRole::kUser},
    {"assistant", ChatRole::kAssistant},
    {"tool", ChatRole::kTool},
    {"latest_reminder", ChatRole::kLatestReminder},
}};

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};
constexpr std::string_view kActionTask = "action";

// Bars are U+FF5C, the word separator U+2581.
std::string ControlToken(std::string_view name) {
  return absl::StrCat("<｜", std::string(name), "｜>");
}

absl::Status MessageError(size_t index, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("messages[", index, "]: ", std::string(what)));
}

bool OpensTurn(const ChatMessage& message) {
  return message.role == ChatRole::kUser || message.role == ChatRole::kDeveloper;
}

// Index of the last user or developer message, -1 if there is none.
int LastUserIndex(const std::vector<ChatMessage>& messages) {
  int last = static_cast<int>(messages.size()) - 1;
  while (last >= 0 && !OpensTurn(messages[last])) --last;
  return last;
}

// Consecutive user messages are one turn, unless the first of them carries a task.
std::vector<ChatMessage> FuseUserMessages(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> fused;
  for (const ChatMessage& message : messages) {
    if (message.role == ChatRole::kUser && !fused.empty() && fused.back().role == ChatRole::kUser &&
        fused.back().task.empty()) {
      fused.back().content += "\n\n";
      fused.back().content += message.content;
    } else {
      fused.push_back(message);
    }
  }
  return fused;
}

// Before the last user turn: no reasoning, and no developer messages.
std::vector<ChatMessage> DropEarlierReasoning(std::vector<ChatMessage> messages) {
  const int last_user = LastUserIndex(messages);
  std::vector<ChatMessage> kept;
  for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
    ChatMessage& message = messages[i];
    if (i < last_user) {
      if (message.role == ChatRole::kDeveloper) continue;
      message.reasoning_content.clear();
    }
    kept.push_back(std::move(message));
  }
  return kept;
}

}  // namespace

absl::StatusOr<ChatRole> ParseChatRole(std::string_view name) {
  for (const auto& [text, role] : kRoles) {
    if (text == name) return role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("role \"", std::string(name),
                   "\" is none of system, developer, user, assistant, tool, latest_reminder"));
}

// Builds the ids of one conversation. Text is collected and encoded only where a control token
// ends it: neighbouring texts are one text to the tokenizer.
class ChatFormat::Renderer {
 public:
  Renderer(const ChatFormat& format, const ChatRenderOptions& options)
      : format_(format), tokens_(format.tokens_), options_(options) {}

  std::vector<int32_t> Run(const std::vector<ChatMessage>& original) {
    std::vector<ChatMessage> messages = FuseUserMessages(original);
    drops_ = options_.mode == ChatMode::kThinking && options_.drop_reasoning;
    if (drops_) messages = DropEarlierReasoning(std::move(messages));
    last_user_ = LastUserIndex(messages);
    if (options_.add_bos) Control(tokens_.bos);
    if (options_.mode == ChatMode::kThinking && options_.effort == ReasoningEffort::kMax) {
      text_ += format_.max_effort_text_;
    }
    for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
      RenderMessage(messages, i);
      RenderTransition(messages, i);
    }
    FlushText();
    return std::move(ids_);
  }

 private:
  void FlushText() {
    format_.tokenizer_->AppendText(text_, ids_);
    text_.clear();
  }

  void Control(int32_t id) {
    FlushText();
    ids_.push_back(id);
  }

  void RenderMessage(const std::vector<ChatMessage>& messages, int index) {
    const ChatMessage& message = messages[index];
    if (OpensTurn(message)) Control(tokens_.user);
    if (message.role == ChatRole::kLatestReminder) Control(*format_.latest_reminder_);
    if (message.role == ChatRole::kAssistant && HasReasoning(messages, index)) {
      text_ += message.reasoning_content;
      Control(tokens_.think_end);
    }
    text_ += message.content;
    if (message.role == ChatRole::kAssistant && !message.without_eos) Control(tokens_.eos);
  }

  bool HasReasoning(const std::vector<ChatMessage>& messages, int index) const {
    if (options_.mode == ChatMode::kChat) return false;
    if (index > 0 && !messages[index - 1].task.empty()) return false;
    return !drops_ || index > last_user_;
  }

  // What leads from message `index` to the assistant's turn, if that is what follows.
  void RenderTransition(const std::vector<ChatMessage>& messages, int index) {
    if (index + 1 < static_cast<int>(messages.size())) {
      const ChatRole next = messages[index + 1].role;
      if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return;
    }
    const ChatMessage& message = messages[index];
    const bool thinking = options_.mode == ChatMode::kThinking;
    if (message.task.empty()) {
      if (!OpensTurn(message)) return;
      Control(tokens_.assistant);
      Control(thinking && (!drops_ || index >= last_user_) ? tokens_.think_begin
                                                           : tokens_.think_end);
      return;
    }
    if (message.task == kActionTask) {
      Control(tokens_.assistant);
      Control(thinking ? tokens_.think_begin : tokens_.think_end);
    }
    Control(*format_.tokenizer_->SpecialId(ControlToken(message.task)));
  }

  const ChatFormat& format_;
  const ChatTokens& tokens_;
  const ChatRenderOptions& options_;
  bool drops_ = false;
  int last_user_ = -1;
  std::string text_;
  std::vector<int32_t> ids_;
};

ChatFormat::ChatFormat(const Tokenizer* tokenizer, ChatTokens tokens, std::string max_effort_text)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      latest_reminder_(tokenizer->SpecialId(ControlToken("latest_reminder"))),
      max_effort_text_(std::move(max_effort_text)) {}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer* tokenizer,
                                              std::string max_effort_text) {
  ChatTokens tokens{};
  const std::array<std::pair<std::string, int32_t*>, 6> wanted = {{
      {ControlToken("begin▁of▁sentence"), &tokens.bos},
      {ControlToken("end▁of▁sentence"), &tokens.eos},
      {ControlToken("User"), &tokens.user},
      {ControlToken("Assistant"), &tokens.assistant},
      {"<think>", &tokens.think_begin},
      {"</think>", &tokens.think_end},
  }};
  for (const auto& [content, id] : wanted) {
    const std::optional<int32_t> found = tokenizer->SpecialId(content);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the tokenizer has no control token ", content,
                                                     ", which the chat format needs"));
    }
    *id = *found;
  }
  if (!ValidateUtf8(max_effort_text)) {
    return absl::InvalidArgumentError("the text for effort max is not valid UTF-8");
  }
  return ChatFormat(tokenizer, tokens, std::move(max_effort_text));
}

absl::Status ChatFormat::Check(const std::vector<ChatMessage>& messages,
                               const ChatRenderOptions& options) const {
  if (messages.empty()) return absl::InvalidArgumentError("there are no messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == ChatRole::kTool || message.uses_tools) {
      return MessageError(i, "tools and response formats are not supported yet");
    }
    if (!ValidateUtf8(message.content) || !ValidateUtf8(message.reasoning_content)) {
      return MessageError(i, "is not valid UTF-8");
    }
    if (message.role == ChatRole::kLatestReminder && !latest_reminder_.has_value()) {
      return MessageError(i, "this model has no control token for latest_reminder");
    }
    if (message.task.empty()) continue;
    bool known = false;
    for (const std::string_view task : kTasks) known = known || task == message.task;
    if (!known || !OpensTurn(message)) {
      return MessageError(i,
                          absl::StrCat("task \"", message.task,
                                       known ? "\" is only for user messages" : "\" is unknown"));
    }
    if (!tokenizer_->SpecialId(ControlToken(message.task)).has_value()) {
      return MessageError(i,
                          absl::StrCat("this model has no control token for task ", message.task));
    }
  }
  if (options.mode == ChatMode::kThinking && options.effort == ReasoningEffort::kMax &&
      max_effort_text_.empty()) {
    return absl::InvalidArgumentError(
        "reasoning effort max needs the model's effort text, which was not loaded");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(const std::vector<ChatMessage>& messages,
                                                        const ChatRenderOptions& options) const {
  RETURN_IF_ERROR(Check(messages, options));
  return Renderer(*this, options).Run(messages);
}

}  // namespace lodestone

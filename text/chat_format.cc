#include "text/chat_format.h"

#include <array>
#include <utility>

#include <absl/strings/str_cat.h>

#include "base/status_macros.h"
#include "text/chat_turns.h"
#include "text/python_json.h"
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
constexpr std::string_view kTitleTask = "title";  // the only one that an assistant message may have

constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kMarkup = "｜DSML｜";

// Bars are U+FF5C, the word separator U+2581.
std::string ControlToken(std::string_view name) {
  return absl::StrCat("<｜", std::string(name), "｜>");
}

bool TakesInstructions(const ChatMessage& message) {
  return message.role == ChatRole::kSystem || message.role == ChatRole::kDeveloper;
}

bool UsesTools(const ChatMessage& message) {
  return message.role == ChatRole::kTool || !message.tools.empty() || !message.tool_calls.empty();
}

bool AnyDeclaresTools(const std::vector<ChatMessage>& messages) {
  for (const ChatMessage& message : messages) {
    if (!message.tools.empty()) return true;
  }
  return false;
}

// INVALID_ARGUMENT unless `json` is the text of an object; `what` starts the message.
absl::StatusOr<std::string> ObjectText(const std::string& json, std::string_view what) {
  absl::StatusOr<std::string> text = PythonJson(json);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), " is not JSON: ", std::string(text.status().message())));
  }
  if (text->front() != '{') {
    return absl::InvalidArgumentError(absl::StrCat(std::string(what), " is not a JSON object"));
  }
  return text;
}

bool IsUtf8(const ChatMessage& message) {
  if (!ValidateUtf8(message.content) || !ValidateUtf8(message.reasoning_content)) return false;
  for (const ToolCall& call : message.tool_calls) {
    if (!ValidateUtf8(call.name) || !ValidateUtf8(call.arguments)) return false;
  }
  return true;
}

const std::string& EffortText(const VendorTexts& texts, ReasoningEffort effort) {
  static const std::string* const none = new std::string();
  if (effort == ReasoningEffort::kMax) return texts.effort_max;
  return effort == ReasoningEffort::kHigh ? texts.effort_high : *none;
}

absl::Status CheckRole(const ChatMessage& message) {
  if (!TakesInstructions(message) && !message.tools.empty()) {
    return absl::InvalidArgumentError("tools are declared on a system or developer message only");
  }
  if (!TakesInstructions(message) && !message.response_format.empty()) {
    return absl::InvalidArgumentError(
        "a response format is set on a system or developer message only");
  }
  if (message.role != ChatRole::kAssistant && !message.tool_calls.empty()) {
    return absl::InvalidArgumentError("tool calls are on assistant messages only");
  }
  if (message.role == ChatRole::kDeveloper && message.content.empty()) {
    return absl::InvalidArgumentError("a developer message needs content");
  }
  return absl::OkStatus();
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

namespace {

// The first system message, or an empty one in front.
ChatMessage& InstructionsOf(std::vector<ChatMessage>& messages) {
  for (ChatMessage& message : messages) {
    if (message.role == ChatRole::kSystem) return message;
  }
  return *messages.insert(messages.begin(), {.role = ChatRole::kSystem});
}

}  // namespace

void DeclareTools(std::vector<std::string> tools, std::vector<ChatMessage>& messages) {
  if (!tools.empty()) InstructionsOf(messages).tools = std::move(tools);
}

void SetResponseFormat(std::string response_format, std::vector<ChatMessage>& messages) {
  InstructionsOf(messages).response_format = std::move(response_format);
}

// Builds the ids of one conversation. Text is collected and encoded only where a control token
// ends it: neighbouring texts are one text to the tokenizer.
class ChatFormat::Renderer {
 public:
  Renderer(const ChatFormat& format, const ChatRenderOptions& options)
      : format_(format), tokens_(format.tokens_), options_(options) {}

  std::vector<int32_t> Run(const std::vector<ChatMessage>& original) {
    std::vector<ChatMessage> messages = FuseUserTurns(original);
    drops_ = options_.mode == ChatMode::kThinking && options_.drop_reasoning &&
             !AnyDeclaresTools(messages);
    if (drops_) messages = DropEarlierReasoning(std::move(messages));
    last_user_ = LastUserIndex(messages);
    if (options_.add_bos) Control(tokens_.bos);
    if (options_.mode == ChatMode::kThinking) text_ += EffortText(format_.texts_, options_.effort);
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
    if (!message.tools.empty()) RenderTools(message.tools);
    if (!message.response_format.empty()) RenderResponseFormat(message.response_format);
    if (!message.tool_calls.empty()) RenderCalls(message.tool_calls);
    if (message.role == ChatRole::kAssistant && !message.without_eos) Control(tokens_.eos);
  }

  void RenderTools(const std::vector<std::string>& tools) {
    text_ += "\n\n";
    Template(format_.texts_.tools_before);
    for (const std::string& tool : tools) {
      if (&tool != &tools.front()) text_ += '\n';
      text_ += PythonJson(tool).value_or("");
    }
    Template(format_.texts_.tools_after);
  }

  // An empty object counts as none.
  void RenderResponseFormat(const std::string& response_format) {
    const std::string json = PythonJson(response_format).value_or("");
    if (json != "{}") text_ += "\n\n" + format_.texts_.response_format + json;
  }

  void RenderCalls(const std::vector<ToolCall>& calls) {
    text_ += "\n\n";
    Tag("<", "tool_calls>\n");
    for (const ToolCall& call : calls) {
      Tag("<", "invoke name=\"" + call.name + "\">\n");
      RenderArguments(call.arguments);
      text_ += '\n';
      Tag("</", "invoke>\n");
    }
    Tag("</", "tool_calls>");
  }

  void RenderArguments(const std::string& arguments) {
    const std::vector<JsonMember> members = JsonObjectMembers(arguments).value_or(
        std::vector<JsonMember>{{"arguments", arguments, true}});
    for (const JsonMember& member : members) {
      if (&member != &members.front()) text_ += '\n';
      Tag("<", absl::StrCat("parameter name=\"", member.key, "\" string=\"",
                            member.is_string ? "true" : "false", "\">"));
      text_ += member.value;
      Tag("</", "parameter>");
    }
  }

  void Tag(std::string_view open, std::string_view rest) {
    text_ += open;
    Control(*tokens_.markup);
    text_ += rest;
  }

  // A text of the model's vendor: its control tokens are meant.
  void Template(std::string_view text) {
    const std::array<std::pair<std::string_view, int32_t>, 3> controls = {
        {{kMarkup, *tokens_.markup},
         {kThinkBegin, tokens_.think_begin},
         {kThinkEnd, tokens_.think_end}}};
    while (!text.empty()) {
      size_t end = text.size();
      const std::pair<std::string_view, int32_t>* next = nullptr;
      for (const auto& control : controls) {
        const size_t found = text.find(control.first);
        if (found < end) {
          end = found;
          next = &control;
        }
      }
      text_ += text.substr(0, end);
      if (next == nullptr) return;
      Control(next->second);
      text.remove_prefix(end + next->first.size());
    }
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

ChatFormat::ChatFormat(const Tokenizer* tokenizer, ChatTokens tokens, VendorTexts texts)
    : tokenizer_(tokenizer),
      tokens_(tokens),
      latest_reminder_(tokenizer->SpecialId(ControlToken("latest_reminder"))),
      texts_(std::move(texts)) {}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer* tokenizer, VendorTexts texts) {
  ChatTokens tokens{};
  const std::array<std::pair<std::string, int32_t*>, 6> wanted = {{
      {ControlToken("begin▁of▁sentence"), &tokens.bos},
      {ControlToken("end▁of▁sentence"), &tokens.eos},
      {ControlToken("User"), &tokens.user},
      {ControlToken("Assistant"), &tokens.assistant},
      {std::string(kThinkBegin), &tokens.think_begin},
      {std::string(kThinkEnd), &tokens.think_end},
  }};
  for (const auto& [content, id] : wanted) {
    const std::optional<int32_t> found = tokenizer->SpecialId(content);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the tokenizer has no control token ", content,
                                                     ", which the chat format needs"));
    }
    *id = *found;
  }
  tokens.markup = tokenizer->SpecialId(kMarkup);
  for (const std::string* text : {&texts.effort_high, &texts.effort_max, &texts.tools_before,
                                  &texts.tools_after, &texts.response_format}) {
    if (!ValidateUtf8(*text)) {
      return absl::InvalidArgumentError("a fixed text of the chat format is not valid UTF-8");
    }
  }
  return ChatFormat(tokenizer, tokens, std::move(texts));
}

absl::Status ChatFormat::tools_available() const {
  if (!tokens_.markup.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this model has no tools: its tokenizer has no control token ", std::string(kMarkup)));
  }
  if (texts_.tools_before.empty() || texts_.tools_after.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this model has no tools: the folder encoding of its files has no text that ",
                     texts_.tools_before.empty() ? "introduces" : "follows", " the list of tools"));
  }
  return absl::OkStatus();
}

absl::Status ChatFormat::response_formats_available() const {
  if (!texts_.response_format.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "this model has no response formats: the folder encoding of its files has no text that "
      "introduces one");
}

absl::Status ChatFormat::effort_available(ReasoningEffort effort) const {
  const bool high_has_text = texts_.encoding == VendorTexts::Encoding::kRefreshed;
  const bool needs_text =
      effort == ReasoningEffort::kMax || (effort == ReasoningEffort::kHigh && high_has_text);
  if (!needs_text || !EffortText(texts_, effort).empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "this model has no reasoning effort ", effort == ReasoningEffort::kMax ? "max" : "high",
      ": the folder encoding of its files has no text that asks for it"));
}

absl::Status ChatFormat::CheckTask(const ChatMessage& message) const {
  if (message.task.empty()) return absl::OkStatus();
  bool known = false;
  for (const std::string_view task : kTasks) known = known || task == message.task;
  const bool allowed =
      OpensTurn(message) || (message.role == ChatRole::kAssistant && message.task == kTitleTask);
  if (!known || !allowed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "task \"", message.task, known ? "\" is only for user messages" : "\" is unknown"));
  }
  if (!tokenizer_->SpecialId(ControlToken(message.task)).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this model has no control token for task ", message.task));
  }
  return absl::OkStatus();
}

absl::Status ChatFormat::CheckTools(const ChatMessage& message) const {
  if (UsesTools(message)) RETURN_IF_ERROR(tools_available());
  for (size_t i = 0; i < message.tools.size(); ++i) {
    RETURN_IF_ERROR(ObjectText(message.tools[i], absl::StrCat("tools[", i, "]")).status());
  }
  if (message.response_format.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(ObjectText(message.response_format, "the response format").status());
  return response_formats_available();
}

absl::Status ChatFormat::Check(const std::vector<ChatMessage>& messages,
                               const ChatRenderOptions& options) const {
  if (messages.empty()) return absl::InvalidArgumentError("there are no messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    absl::Status status = CheckRole(message);
    if (status.ok() && !IsUtf8(message)) status = absl::InvalidArgumentError("is not valid UTF-8");
    if (status.ok() && message.role == ChatRole::kLatestReminder && !latest_reminder_.has_value()) {
      status = absl::InvalidArgumentError("this model has no control token for latest_reminder");
    }
    if (status.ok()) status = CheckTools(message);
    if (status.ok()) status = CheckTask(message);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "]: ", std::string(status.message())));
    }
  }
  return options.mode == ChatMode::kThinking ? effort_available(options.effort)
                                             : absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(const std::vector<ChatMessage>& messages,
                                                        const ChatRenderOptions& options) const {
  RETURN_IF_ERROR(Check(messages, options));
  return Renderer(*this, options).Run(messages);
}

}  // namespace lodestone

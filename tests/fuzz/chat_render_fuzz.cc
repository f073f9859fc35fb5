// Conversations to prompts. First byte: bit 0 thinking, bit 1 keeps reasoning, bit 2 asks for
// effort max. Then messages: a byte for the role (s d u a t l, a line that starts with '+' goes to
// the message before), a byte for the field of this line (c content, r reasoning, k task, f tool
// declaration, j response format, n call name and arguments after '=', i call id), the line.
// Properties: the control tokens of a prompt come from the structure alone: with every text of the
// messages replaced the same ones stand in the same order; the texts are in the prompt.
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizer.h"
#include "text/chat_format.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr size_t kMost = 12;  // messages

const ChatFormat& Format() {
  static const ChatFormat* const format = [] {
    absl::StatusOr<ChatFormat> created = ChatFormat::Create(
        &BundledTokenizer(), {.effort_high = "high",
                              .effort_max = "max",
                              .tools_before = "tools <｜DSML｜tool_calls> <think>\n",
                              .tools_after = "\nafter </think>",
                              .response_format = "format "});
    CHECK(created.ok()) << created.status();
    return new ChatFormat(*std::move(created));
  }();
  return *format;
}

ChatRole RoleOf(char letter) {
  switch (letter) {
    case 's': return ChatRole::kSystem;
    case 'd': return ChatRole::kDeveloper;
    case 'a': return ChatRole::kAssistant;
    case 't': return ChatRole::kTool;
    case 'l': return ChatRole::kLatestReminder;
    default: return ChatRole::kUser;
  }
}

void SetField(char field, const std::string& text, ChatMessage& message) {
  switch (field) {
    case 'r': message.reasoning_content = text; return;
    case 'k': message.task = text; return;
    case 'f': message.tools.push_back(text); return;
    case 'j': message.response_format = text; return;
    case 'w': message.without_eos = true; return;
    case 'i': message.tool_call_id = text; return;
    case 'n': {
      const size_t equals = std::min(text.find('='), text.size());
      message.tool_calls.push_back(
          {.id = "call_" + std::to_string(message.tool_calls.size()),
           .name = text.substr(0, equals),
           .arguments = text.substr(std::min(equals + 1, text.size()))});
      return;
    }
    default: message.content = text; return;
  }
}

std::vector<ChatMessage> ReadMessages(FuzzInput& input) {
  std::vector<ChatMessage> messages;
  while (!input.empty() && messages.size() < kMost) {
    const char role = static_cast<char>(input.Byte());
    const char field = static_cast<char>(input.Byte());
    if (role != '+' || messages.empty()) messages.push_back({.role = RoleOf(role)});
    SetField(field, std::string(input.Until('\n')), messages.back());
  }
  return messages;
}

std::vector<int32_t> Controls(const std::vector<int32_t>& ids) {
  std::vector<int32_t> controls;
  for (const int32_t id : ids) {
    CHECK(id >= 0 && id < BundledTokenizer().vocab_size()) << id;
    if (BundledTokenizer().IsAdded(id)) controls.push_back(id);
  }
  return controls;
}

// The same conversation with other words.
std::vector<ChatMessage> Reworded(std::vector<ChatMessage> messages) {
  for (ChatMessage& message : messages) {
    if (!message.content.empty()) message.content = "words";
    if (!message.reasoning_content.empty()) message.reasoning_content = "thoughts";
    for (ToolCall& call : message.tool_calls) call.name = "name";
  }
  return messages;
}

void Run(FuzzInput input) {
  const uint8_t choice = input.Byte();
  ChatRenderOptions options{
      .mode = (choice & 1) != 0 ? ChatMode::kThinking : ChatMode::kChat,
      .effort = (choice & 4) != 0 ? ReasoningEffort::kMax : ReasoningEffort::kNone,
      .drop_reasoning = (choice & 2) == 0};
  const std::vector<ChatMessage> messages = ReadMessages(input);
  const absl::StatusOr<std::vector<int32_t>> ids = Format().Render(messages, options);
  if (!ids.ok()) {
    CHECK(ids.status().code() == absl::StatusCode::kInvalidArgument) << ids.status();
    return;
  }
  CHECK(!ids->empty() && ids->front() == Format().tokens().bos);
  const absl::StatusOr<std::vector<int32_t>> reworded =
      Format().Render(Reworded(messages), options);
  CHECK(reworded.ok()) << reworded.status();
  CHECK(Controls(*ids) == Controls(*reworded)) << "a text changed the control tokens";
  const std::string prompt = JoinedBytes(BundledTokenizer(), *ids);
  CHECK(ValidateUtf8(prompt));
  // The last message is never left out.
  CHECK(prompt.find(messages.back().content) != std::string::npos);
  options.add_bos = false;
  const absl::StatusOr<std::vector<int32_t>> bare = Format().Render(messages, options);
  CHECK(bare.ok() && std::equal(bare->begin(), bare->end(), ids->begin() + 1, ids->end()));
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}

#include <absl/strings/str_cat.h>

#include "router/openai_fields.h"

namespace lodestone {
namespace {

// Text parts, joined as the chat format joins them.
std::string JoinParts(FieldReader& message, const json::array& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    if (!parts[i].is_object()) {
      message.Fail(InvalidType(place, absl::StrCat(place, " is ", std::string(TypeName(parts[i])),
                                                   ", expected an object")));
      return {};
    }
    const json::object& part = parts[i].get_object();
    const json::value* type = part.if_contains("type");
    const json::value* content = part.if_contains("text");
    if (type == nullptr || !type->is_string() || type->get_string() != "text") {
      ApiError error = Unsupported(absl::StrCat(place, ".type"),
                                   absl::StrCat(place, ".type is ",
                                                type == nullptr ? "absent" : json::serialize(*type),
                                                ", only \"text\" parts are supported"));
      error.code = "unsupported_content_part";
      message.Fail(std::move(error));
      return {};
    }
    if (content == nullptr || !content->is_string()) {
      message.Fail(InvalidType(absl::StrCat(place, ".text"),
                               absl::StrCat(place, ".text must be a string")));
      return {};
    }
    if (i > 0) text += "\n\n";
    text += std::string(content->get_string());
  }
  return text;
}

std::string ReadContent(FieldReader& message) {
  const json::value* content = message.Find("content");
  if (content == nullptr) {
    message.Fail(InvalidValue(message.PathOf("content"),
                              absl::StrCat(message.PathOf("content"), " is required")));
    return {};
  }
  if (content->is_string()) return std::string(content->get_string());
  if (content->is_array()) {
    return JoinParts(message, content->get_array(), message.PathOf("content"));
  }
  message.Fail(InvalidType(message.PathOf("content"),
                           absl::StrCat(message.PathOf("content"), " is ",
                                        std::string(TypeName(*content)),
                                        ", expected a string or an array of parts")));
  return {};
}

ChatRole ReadRole(FieldReader& message) {
  const std::string role = message.String("role").value_or("");
  // OpenAI's developer message is what the format calls the system message.
  if (role == "system" || role == "developer") return ChatRole::kSystem;
  if (role == "user") return ChatRole::kUser;
  if (role == "assistant") return ChatRole::kAssistant;
  if (role == "latest_reminder") return ChatRole::kLatestReminder;
  const std::string path = message.PathOf("role");
  if (role == "tool" || role == "function") {
    message.Fail(Unsupported(path, absl::StrCat(path, " is \"", role, "\": tools are not supported")));
  } else {
    message.Fail(InvalidValue(path, absl::StrCat(path, " is \"", role.substr(0, 64),
                                                 "\", expected system, developer, user or assistant")));
  }
  return ChatRole::kUser;
}

ChatMessage ReadMessage(FieldReader& message) {
  ChatMessage result;
  result.role = ReadRole(message);
  for (const std::string_view name : {"tool_calls", "function_call", "tool_call_id"}) {
    RefuseUnless(message, name, {"[]"});
  }
  result.content = ReadContent(message);
  message.Ignore({"name", "refusal", "audio"});
  const std::string_view reasoning_key = "reasoning_content";
  result.reasoning_content = message.String(reasoning_key).value_or("");
  if (!result.reasoning_content.empty() && result.role != ChatRole::kAssistant) {
    message.Fail(InvalidValue(message.PathOf(reasoning_key),
                              absl::StrCat(message.PathOf(reasoning_key),
                                           " is only allowed on assistant messages")));
  }
  return result;
}

}  // namespace

void ReadMessages(FieldReader& reader, ApiRequest& request) {
  const json::array* messages = reader.Array("messages");
  if (reader.failed()) return;
  if (messages == nullptr || messages->empty()) {
    return reader.Fail(InvalidValue("messages", "messages must have at least one message"));
  }
  if (messages->size() > kMaxMessages) {
    return reader.Fail(InvalidValue("messages", absl::StrCat("messages has ", messages->size(),
                                                             " entries, limit is ", kMaxMessages)));
  }
  for (size_t i = 0; i < messages->size() && !reader.failed(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    if (!(*messages)[i].is_object()) {
      return reader.Fail(InvalidType(path, absl::StrCat(path, " is ",
                                                        std::string(TypeName((*messages)[i])),
                                                        ", expected an object")));
    }
    std::optional<ApiError> error;
    FieldReader message((*messages)[i].get_object(), path, &error);
    request.messages.push_back(ReadMessage(message));
    if (error.has_value()) return reader.Fail(*error);
  }
}

}  // namespace lodestone

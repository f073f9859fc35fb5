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

std::string ReadContent(FieldReader& message, bool may_be_absent) {
  const json::value* content = message.Find("content");
  if (content == nullptr) {
    if (may_be_absent) return {};
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
  if (role == "tool") return ChatRole::kTool;
  if (role == "latest_reminder") return ChatRole::kLatestReminder;
  const std::string path = message.PathOf("role");
  if (role == "function") {
    message.Fail(Unsupported(path, absl::StrCat(path, " is \"function\", use \"tool\"")));
  } else {
    message.Fail(
        InvalidValue(path, absl::StrCat(path, " is \"", role.substr(0, 64), "\", expected ",
                                        "system, developer, user, assistant or tool")));
  }
  return ChatRole::kUser;
}

std::string RequiredString(FieldReader& reader, std::string_view name) {
  const std::optional<std::string> value = reader.String(name);
  if (!value.has_value()) {
    reader.Fail(InvalidValue(reader.PathOf(name),
                             absl::StrCat(reader.PathOf(name), " is required")));
  }
  return value.value_or("");
}

ToolCall ReadToolCall(FieldReader& call, std::optional<ApiError>& error) {
  ToolCall result;
  result.id = RequiredString(call, "id");
  const std::string type = call.String("type").value_or("function");
  if (type != "function") {
    call.Fail(Unsupported(call.PathOf("type"), absl::StrCat(call.PathOf("type"), " is \"",
                                                            type.substr(0, 64),
                                                            "\", only functions are called")));
  }
  const json::object* object = call.Object("function");
  if (object == nullptr) {
    call.Fail(InvalidValue(call.PathOf("function"),
                           absl::StrCat(call.PathOf("function"), " is required")));
    return result;
  }
  FieldReader function(*object, call.PathOf("function"), &error);
  result.name = RequiredString(function, "name");
  result.arguments = RequiredString(function, "arguments");
  return result;
}

std::vector<ToolCall> ReadToolCalls(FieldReader& message) {
  std::vector<ToolCall> calls;
  const json::array* array = message.Array("tool_calls");
  if (array == nullptr) return calls;
  if (array->size() > kMaxTools) {
    message.Fail(InvalidValue(message.PathOf("tool_calls"),
                              absl::StrCat(message.PathOf("tool_calls"), " has ", array->size(),
                                           " entries, limit is ", kMaxTools)));
    return calls;
  }
  for (size_t i = 0; i < array->size() && !message.failed(); ++i) {
    const std::string path = absl::StrCat(message.PathOf("tool_calls"), "[", i, "]");
    if (!(*array)[i].is_object()) {
      message.Fail(InvalidType(path, absl::StrCat(path, " is ",
                                                  std::string(TypeName((*array)[i])),
                                                  ", expected an object")));
      return calls;
    }
    std::optional<ApiError> error;
    FieldReader call((*array)[i].get_object(), path, &error);
    calls.push_back(ReadToolCall(call, error));
    if (error.has_value()) message.Fail(*error);
  }
  return calls;
}

ChatMessage ReadMessage(FieldReader& message) {
  ChatMessage result;
  result.role = ReadRole(message);
  RefuseUnless(message, "function_call", {});
  if (result.role == ChatRole::kAssistant) {
    result.tool_calls = ReadToolCalls(message);
  } else {
    RefuseUnless(message, "tool_calls", {"[]"});
  }
  if (result.role == ChatRole::kTool) {
    result.tool_call_id = RequiredString(message, "tool_call_id");
  } else {
    RefuseUnless(message, "tool_call_id", {});
  }
  result.content = ReadContent(message, !result.tool_calls.empty());
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

#include "router/openai_schema.h"

#include <limits>

#include <absl/strings/str_cat.h>

#include "router/openai_fields.h"

namespace lodestone {
namespace {

constexpr int64_t kAnyCount = std::numeric_limits<int64_t>::max();

// One of the three ways to ask for thinking: unset, off or on.
void AskThinking(FieldReader& reader, std::string_view name, bool thinking,
                 std::optional<bool>& wanted) {
  if (wanted.has_value() && *wanted != thinking) {
    reader.Fail(InvalidValue(name, absl::StrCat(std::string(name),
                                                " contradicts another field: one "
                                                "asks for thinking, one against it")));
  }
  wanted = thinking;
}

void ReadEffort(FieldReader& reader, ApiRequest& request, std::optional<bool>& thinking) {
  const std::optional<std::string> effort = reader.String("reasoning_effort");
  if (!effort.has_value()) return;
  if (*effort == "none") return AskThinking(reader, "reasoning_effort", false, thinking);
  if (*effort == "max" || *effort == "xhigh") {
    request.render.effort = ReasoningEffort::kMax;
  } else if (*effort == "medium" || *effort == "high") {
    request.render.effort = ReasoningEffort::kHigh;
  } else if (*effort == "minimal" || *effort == "low") {
    request.render.effort = ReasoningEffort::kLow;
  } else {
    return reader.Fail(InvalidValue(
        "reasoning_effort", absl::StrCat("reasoning_effort is \"", effort->substr(0, 64),
                                         "\", expected none, minimal, low, medium, high or max")));
  }
  AskThinking(reader, "reasoning_effort", true, thinking);
}

void ReadThinking(FieldReader& reader, ApiRequest& request) {
  std::optional<bool> thinking;
  std::optional<ApiError> error;
  ReadEffort(reader, request, thinking);
  if (const json::object* object = reader.Object("thinking")) {
    FieldReader nested(*object, "thinking", &error);
    const std::string type = nested.String("type").value_or("");
    if (type != "enabled" && type != "disabled") {
      nested.Fail(
          InvalidValue("thinking.type", absl::StrCat("thinking.type is \"", type.substr(0, 64),
                                                     "\", expected enabled or disabled")));
    }
    AskThinking(reader, "thinking", type == "enabled", thinking);
  }
  if (const json::object* object = reader.Object("chat_template_kwargs")) {
    FieldReader nested(*object, "chat_template_kwargs", &error);
    for (const std::string_view name : {"thinking", "enable_thinking"}) {
      const std::optional<bool> value = nested.Bool(name);
      if (value.has_value()) AskThinking(reader, nested.PathOf(name), *value, thinking);
    }
    for (const std::string& name : nested.Unknown()) {
      nested.Fail(Unsupported(nested.PathOf(name), absl::StrCat(nested.PathOf(name),
                                                               " is not supported")));
    }
  }
  if (error.has_value()) reader.Fail(*error);
  request.render.mode = thinking.value_or(false) ? ChatMode::kThinking : ChatMode::kChat;
}

void ReadChatMaxTokens(FieldReader& reader, ApiRequest& request) {
  const std::optional<int64_t> modern = reader.Int("max_completion_tokens", 1, kAnyCount);
  const std::optional<int64_t> deprecated = reader.Int("max_tokens", 1, kAnyCount);
  if (modern.has_value() && deprecated.has_value() && *modern != *deprecated) {
    reader.Fail(InvalidValue(
        "max_tokens",
        absl::StrCat("max_tokens is ", *deprecated, " but max_completion_tokens is ", *modern)));
  }
  request.max_tokens = modern.has_value() ? modern : deprecated;
}

void ReadChatLogprobs(FieldReader& reader, ApiRequest& request) {
  request.logprobs = reader.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = reader.Int("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !request.logprobs) {
    reader.Fail(InvalidValue("top_logprobs", "top_logprobs needs logprobs to be true"));
  }
  request.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

void RefuseChatExtras(FieldReader& reader) {
  RefuseUnless(reader, "functions", {"[]"});
  RefuseUnless(reader, "function_call", {"\"none\"", "\"auto\""});
  RefuseUnless(reader, "modalities", {"[\"text\"]"});
  for (const std::string_view name : {"prediction", "audio", "web_search_options"}) {
    RefuseUnless(reader, name, {});
  }
}

void ReadPrompts(FieldReader& reader, int32_t vocab_size, ApiRequest& request) {
  const json::value* prompt = reader.Find("prompt");
  if (reader.failed()) return;
  if (prompt == nullptr) return reader.Fail(InvalidValue("prompt", "prompt is required"));
  if (prompt->is_string()) {
    request.prompts.emplace_back(std::string(prompt->get_string()));
    return;
  }
  if (!prompt->is_array()) {
    return reader.Fail(InvalidType("prompt",
                                   absl::StrCat("prompt is ", std::string(TypeName(*prompt)),
                                                ", expected a string, strings or token ids")));
  }
  if (prompt->get_array().empty()) {
    return reader.Fail(InvalidValue("prompt", "prompt is empty: at least one token is needed"));
  }
  const json::array& array = prompt->get_array();
  if (array[0].is_number()) {
    request.prompts.emplace_back(ReadTokenIds(reader, array, "prompt", vocab_size));
    return;
  }
  if (array.size() > kMaxPrompts) {
    return reader.Fail(InvalidValue("prompt", absl::StrCat("prompt has ", array.size(),
                                                           " prompts, limit is ", kMaxPrompts)));
  }
  for (const json::value& element : array) {
    const std::string path = absl::StrCat("prompt[", request.prompts.size(), "]");
    if (element.is_string()) {
      request.prompts.emplace_back(std::string(element.get_string()));
    } else if (element.is_array()) {
      request.prompts.emplace_back(ReadTokenIds(reader, element.get_array(), path, vocab_size));
    } else {
      return reader.Fail(
          InvalidType(path, absl::StrCat(path, " is ", std::string(TypeName(element)),
                                         ", expected a string or token ids")));
    }
  }
}

void CheckPromptsNotEmpty(FieldReader& reader, const ApiRequest& request) {
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const bool empty = std::visit([](const auto& prompt) { return prompt.empty(); },
                                  request.prompts[i]);
    if (empty) {
      const std::string path =
          request.prompts.size() == 1 ? "prompt" : absl::StrCat("prompt[", i, "]");
      reader.Fail(
          InvalidValue(path, absl::StrCat(path, " is empty: at least one token is needed")));
    }
  }
}

void ReadCompletionLogprobs(FieldReader& reader, ApiRequest& request) {
  const std::optional<int64_t> logprobs = reader.Int("logprobs", 0, kMaxCompletionLogprobs);
  request.logprobs = logprobs.has_value();
  request.top_logprobs = static_cast<int32_t>(logprobs.value_or(0));
}

void ReadCompletionFields(FieldReader& reader, const SchemaRules& rules, ApiRequest& request) {
  ReadPrompts(reader, rules.vocab_size, request);
  CheckPromptsNotEmpty(reader, request);
  request.echo = reader.Bool("echo").value_or(false);
  request.max_tokens = reader.Int("max_tokens", 0, kAnyCount);
  if (request.max_tokens == 0 && !request.echo) {
    reader.Fail(InvalidValue("max_tokens", "max_tokens is 0, expected at least 1 without echo"));
  }
  ReadCompletionLogprobs(reader, request);
  RefuseUnless(reader, "best_of", {"1"});
  RefuseUnless(reader, "suffix", {"\"\""});
}

template <typename ReadFields>
ApiOr<ApiRequest> ParseFields(std::string_view body, const SchemaRules& rules, ApiKind api,
                              ReadFields read_fields) {
  ApiOr<json::value> document = ParseJson(body);
  if (!document.ok()) return document.error();
  if (!document.value().is_object()) {
    return InvalidType("", absl::StrCat("the body is ", std::string(TypeName(document.value())),
                                        ", expected an object"));
  }
  ApiRequest request;
  request.api = api;
  std::optional<ApiError> error;
  FieldReader reader(document.value().get_object(), "", &error);
  ReadCommonFields(reader, rules, request);
  read_fields(reader, request);
  request.sampling.logprobs = request.logprobs;
  request.sampling.top_logprobs = request.top_logprobs;
  request.unknown_fields = reader.Unknown();
  if (!error.has_value() && rules.strict && !request.unknown_fields.empty()) {
    const std::string& name = request.unknown_fields.front();
    error =
        Unsupported(name, absl::StrCat("unknown field ", name.substr(0, 64), " (--strict-api)"));
  }
  if (error.has_value()) return *error;
  return request;
}

template <typename ReadFields>
ApiOr<ApiRequest> Parse(std::string_view body, const SchemaRules& rules, ApiKind api,
                        ReadFields read_fields) {
  return OrOutOfMemory([&] { return ParseFields(body, rules, api, read_fields); });
}

}  // namespace

ApiOr<ApiRequest> ParseChatRequest(std::string_view body, const SchemaRules& rules) {
  return Parse(body, rules, ApiKind::kChat, [body](FieldReader& reader, ApiRequest& request) {
    ReadMessages(reader, request);
    ReadChatMaxTokens(reader, request);
    ReadChatLogprobs(reader, request);
    ReadThinking(reader, request);
    ReadTools(reader, body, request);
    ReadResponseFormat(reader, body, request);
    RefuseChatExtras(reader);
  });
}

ApiOr<ApiRequest> ParseCompletionRequest(std::string_view body, const SchemaRules& rules) {
  return Parse(body, rules, ApiKind::kCompletions,
               [&rules](FieldReader& reader, ApiRequest& request) {
                 ReadCompletionFields(reader, rules, request);
               });
}

std::optional<ApiError> CheckTokenIds(const std::vector<TokenId>& ids, int32_t vocab_size,
                                      std::string_view path) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    const std::string place = absl::StrCat(std::string(path), "[", i, "]");
    return InvalidValue(place, absl::StrCat(place, " is ", ids[i],
                                            ", expected a token id from 0 to ", vocab_size - 1));
  }
  return std::nullopt;
}

}  // namespace lodestone

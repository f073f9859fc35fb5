#include "cli/openai_client.h"

#include <algorithm>
#include <boost/json.hpp>
#include <thread>

#include "base/status_macros.h"

namespace lodestone {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

absl::StatusOr<json::value> ParseBody(std::string_view body) {
  json::error_code error;
  json::value value = json::parse(json::string_view(body.data(), body.size()), error);
  if (error) return absl::UnavailableError("the server's answer is not JSON: " + error.message());
  return value;
}

// Members of `value` along `path`, null where one is missing.
const json::value* Find(const json::value& value, std::initializer_list<const char*> path) {
  const json::value* at = &value;
  for (const char* key : path) {
    if (at->is_array()) at = at->get_array().empty() ? nullptr : &at->get_array()[0];
    if (at == nullptr || !at->is_object()) return nullptr;
    at = at->get_object().if_contains(key);
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::string StringAt(const json::value& value, std::initializer_list<const char*> path) {
  const json::value* found = Find(value, path);
  if (found == nullptr || !found->is_string()) return "";
  return std::string(found->get_string().data(), found->get_string().size());
}

int64_t IntegerAt(const json::value& value, std::initializer_list<const char*> path) {
  const json::value* found = Find(value, path);
  json::error_code error;
  return found == nullptr || !found->is_number() ? 0 : found->to_number<int64_t>(error);
}

void TakeUsage(const json::value& value, ChatAnswer* answer) {
  if (Find(value, {"usage", "prompt_tokens"}) == nullptr) return;
  answer->prompt_tokens = IntegerAt(value, {"usage", "prompt_tokens"});
  answer->completion_tokens = IntegerAt(value, {"usage", "completion_tokens"});
}

std::string ChatBody(const std::string& model, const std::string& question, int64_t max_tokens,
                     bool stream) {
  json::object body{{"model", model},
                    {"messages", json::array{{{"role", "user"}, {"content", question}}}},
                    {"max_tokens", max_tokens},
                    {"temperature", 0}};
  if (stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  return json::serialize(body);
}

}  // namespace

absl::Status HttpError(const HttpReply& reply) {
  std::string message;
  if (const absl::StatusOr<json::value> body = ParseBody(reply.body); body.ok()) {
    message = StringAt(*body, {"error", "message"});
    if (message.empty()) message = StringAt(*body, {"message"});
  }
  if (message.empty()) message = reply.body.substr(0, 300);
  message = "HTTP " + std::to_string(reply.status) + ": " + message;
  if (reply.status == 429 || reply.status == 503) return absl::UnavailableError(message);
  if (reply.status < 500) return absl::InvalidArgumentError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::vector<std::string>> OpenAiClient::Models(milliseconds timeout) const {
  ASSIGN_OR_RETURN(const HttpReply reply, http_.Get("/v1/models", timeout));
  if (reply.status != 200) return HttpError(reply);
  ASSIGN_OR_RETURN(const json::value body, ParseBody(reply.body));
  std::vector<std::string> ids;
  const json::value* data = Find(body, {"data"});
  if (data != nullptr && data->is_array()) {
    for (const json::value& entry : data->get_array()) ids.push_back(StringAt(entry, {"id"}));
  }
  if (ids.empty()) return absl::UnavailableError("/v1/models names no model");
  return ids;
}

absl::StatusOr<ChatAnswer> OpenAiClient::Ask(const std::string& model, const std::string& question,
                                             int64_t max_tokens, milliseconds timeout) const {
  const steady_clock::time_point deadline = steady_clock::now() + timeout;
  const std::string body = ChatBody(model, question, max_tokens, false);
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    ASSIGN_OR_RETURN(const HttpReply reply, http_.Post("/v1/chat/completions", body, left));
    if (reply.status == 200) {
      ASSIGN_OR_RETURN(const json::value value, ParseBody(reply.body));
      ChatAnswer answer{.text = StringAt(value, {"choices", "message", "content"}),
                        .finish_reason = StringAt(value, {"choices", "finish_reason"})};
      TakeUsage(value, &answer);
      return answer;
    }
    const double wait_seconds = std::clamp(reply.retry_after_seconds, 0.5, 10.0);
    const milliseconds wait(static_cast<int64_t>(wait_seconds * 1000));
    const bool may_retry = reply.status == 429 || reply.status == 503;
    if (!may_retry || steady_clock::now() + wait >= deadline) return HttpError(reply);
    std::this_thread::sleep_for(wait);
  }
}

absl::StatusOr<ChatAnswer> OpenAiClient::AskStreamed(
    const std::string& model, const std::string& question, int64_t max_tokens, milliseconds timeout,
    const std::function<void(std::string_view)>& on_text) const {
  ChatAnswer answer;
  absl::Status failed;
  bool done = false;
  SseParser events;
  const auto on_event = [&](std::string_view data) {
    if (data == "[DONE]") {
      done = true;
      return true;
    }
    const absl::StatusOr<json::value> value = ParseBody(data);
    if (!value.ok()) {
      failed = value.status();
    } else if (Find(*value, {"error"}) != nullptr) {
      failed = absl::UnavailableError(StringAt(*value, {"error", "message"}));
    } else {
      const std::string piece = StringAt(*value, {"choices", "delta", "content"});
      if (!piece.empty()) on_text(piece);
      answer.text += piece;
      const std::string finish = StringAt(*value, {"choices", "finish_reason"});
      if (!finish.empty()) answer.finish_reason = finish;
      TakeUsage(*value, &answer);
    }
    return failed.ok();
  };
  const absl::StatusOr<HttpReply> reply =
      http_.Post("/v1/chat/completions", ChatBody(model, question, max_tokens, true), timeout,
                 [&](std::string_view bytes) { return events.Feed(bytes, on_event); });
  RETURN_IF_ERROR(failed);
  RETURN_IF_ERROR(reply.status());
  if (reply->status != 200) return HttpError(*reply);
  if (!done) return absl::UnavailableError("the stream ended without [DONE]");
  return answer;
}

}  // namespace lodestone

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "cli/http_client.h"

namespace lodestone {

struct ChatAnswer {
  std::string text;
  std::string finish_reason;
  int64_t prompt_tokens = 0;  // as the server counted them; 0 if it does not say
  int64_t completion_tokens = 0;
};

// One question to the chat API of any OpenAI-compatible server. Thread-safe (const).
class OpenAiClient {
 public:
  explicit OpenAiClient(HttpClient http) : http_(std::move(http)) {}

  // Ids of /v1/models. An HTTP error becomes a status with the server's message.
  absl::StatusOr<std::vector<std::string>> Models(std::chrono::milliseconds timeout) const;

  // The greedy answer to one user message. Full (429) and not ready (503) are tried again, as
  // Retry-After says, until the timeout.
  absl::StatusOr<ChatAnswer> Ask(const std::string& model, const std::string& question,
                                 int64_t max_tokens, std::chrono::milliseconds timeout) const;
  // The same, streamed: `on_text` gets each piece as it arrives.
  absl::StatusOr<ChatAnswer> AskStreamed(
      const std::string& model, const std::string& question, int64_t max_tokens,
      std::chrono::milliseconds timeout,
      const std::function<void(std::string_view)>& on_text) const;

 private:
  const HttpClient http_;
};

// What the server's error body says, or the body itself: "HTTP 429: the queue is full".
absl::Status HttpError(const HttpReply& reply);

}  // namespace lodestone

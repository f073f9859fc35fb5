#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/sampling_params.h"
#include "text/chat_format.h"

namespace lodestone {

enum class ApiKind { kChat, kCompletions, kGrpc };

// What a client asked, checked for form, not yet in tokens.
struct ApiRequest {
  ApiKind api = ApiKind::kChat;
  std::string model;
  // Exactly one is used: `messages` by chat, `prompts` by the others (text, or token ids).
  std::vector<ChatMessage> messages;
  std::vector<std::variant<std::string, std::vector<TokenId>>> prompts;
  ChatRenderOptions render;
  bool calls_tools = false;          // chat: messages declare tools, and calls in answers are read
  bool has_response_format = false;  // chat: one is declared in the messages
  bool parallel_tool_calls = true;   // false: an answer ends with its first call

  SamplingParams sampling;             // without seed and max_new_tokens
  std::optional<int64_t> seed;         // absent: drawn by the router
  int32_t num_choices = 1;             // answers to each prompt
  std::optional<int64_t> max_tokens;   // absent: the default of the API
  std::vector<std::string> stop;
  bool include_stop_text = false;
  bool skip_special_tokens = true;
  bool echo = false;                   // completions: the prompt's text first
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool timings = false;
  std::optional<double> sse_ping_interval_seconds;  // < 0: off
  std::vector<std::string> unknown_fields;
};

// One prompt with everything that decides its tokens: what the flow runs.
struct Request {
  RequestId id = RequestId::Random();
  std::vector<TokenId> prompt;
  SamplingParams sampling;  // complete; of the first choice
  // Of the further choices, which differ in nothing else.
  std::vector<uint64_t> fork_seeds;
  bool prompt_logprobs = false;  // report those of the prompt, too
  bool scores_only = false;      // nothing else is wanted: the one new token is not delivered
  TimePoint received_at;
  TimePoint deadline;
  bool is_probe = false;  // the router's own: not in the users' metrics, not queued
  // Instance ids: only these workers, if not empty.
  std::string pinned_prefill;
  std::string pinned_decode;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};

struct RequestTimings {
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double handoff_seconds = 0;  // first token to second token
  double decode_seconds = 0;
  int64_t handoff_bytes = 0;
};

// How a request, or one of its choices, ended well.
struct Outcome {
  FinishReason finish_reason = FinishReason::kNone;
  Usage usage;
  RequestTimings timings;
  std::string prefill_worker;  // instance ids of the last attempt
  std::string decode_worker;
  int attempts = 1;
};

}  // namespace lodestone

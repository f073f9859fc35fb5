// Requests' answers as the JSON bodies and stream chunks of the OpenAI routes, written by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sampling_params.h"
#include "router/model_info.h"
#include "router/request.h"
#include "text/tool_call_parser.h"

namespace lodestone {

// What is the same in every chunk of an answer.
struct ReplyHead {
  ApiKind api = ApiKind::kChat;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // Unix time
  bool usage_null = false;  // chunks carry "usage": null, because the last one will carry it
};

// One choice, or what a chunk adds to it.
struct ReplyPiece {
  int64_t choice = 0;
  bool with_role = false;  // first chunk of the choice
  std::string reasoning{};
  std::string content{};
  std::vector<ToolCallDelta> tool_calls{};
  bool logprobs = false;                 // the client asked
  std::vector<GeneratedToken> tokens{};  // to report log-probabilities of
  int64_t num_unscored = 0;              // of them, at the front: they have none
  int64_t text_offset = 0;               // completions: characters before these tokens
  std::optional<std::string> finish_reason{};

  bool has_text() const { return !reasoning.empty() || !content.empty() || !tool_calls.empty(); }
};

class OpenAiReply {
 public:
  OpenAiReply(ReplyHead head, const Tokenizer* tokenizer)
      : head_(std::move(head)), tokenizer_(tokenizer) {}

  // One chunk; `usage` only if usage so far was asked for.
  std::string Chunk(const ReplyPiece& piece, const std::optional<Usage>& usage) const;
  // The last chunk: no choices, the usage.
  std::string UsageChunk(const Usage& usage) const;
  // A whole answer. `extra` is nothing or further members of the object, `"timings":{...}`.
  std::string Body(const std::vector<ReplyPiece>& choices, const Usage& usage,
                   std::string_view extra) const;
  const ReplyHead& head() const { return head_; }

 private:
  class Writer;
  const ReplyHead head_;
  const Tokenizer* const tokenizer_;
};

// `"timings":{...},"lodestone":{...}`.
std::string DebugMembers(const Outcome& outcome);
// Number of characters (code points) of UTF-8 text.
int64_t CountCharacters(std::string_view utf8);
// The text of one token as log-probability lists show it: "bytes:\xe4" if it is not whole UTF-8.
std::string TokenLabel(const Tokenizer& tokenizer, TokenId token);

}  // namespace lodestone

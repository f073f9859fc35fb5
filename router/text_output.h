#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "router/model_info.h"
#include "router/request.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_strings.h"

namespace lodestone {

// Tokens of one answer to its text: whole characters, reasoning and tool calls apart from content,
// no content from the first stop string on. Without parallel calls the first one is the last.
// Not thread-safe.
class TextOutput {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
    std::vector<ToolCallDelta> tool_calls;
    bool is_reasoning = false;  // the token belongs to the reasoning
  };
  // `model` must outlive this. REQUIRES: the stop strings of `api` are within the limits, and the
  // model has tools if `api` calls them.
  TextOutput(const ModelInfo& model, const ApiRequest& api);

  // The text that is complete after this token. Nothing once stopped.
  Piece Push(TokenId token);
  // What is still held back. Call once, at the end: `reason` is why there are no more tokens.
  Piece Finish(FinishReason reason);
  // A stop string, or a second call, has ended the answer.
  bool stopped() const { return stop_.stopped() || cut_; }
  // After Finish: why the answer ended, in the words of the API.
  const char* finish_reason() const { return finish_reason_; }

 private:
  Piece Take(ChatDelta delta);

  StopMatcher stop_;
  std::optional<OutputParser> parser_;      // chat
  std::optional<Detokenizer> detokenizer_;  // all others
  const TokenId eos_;
  const bool ignores_eos_;
  const bool one_call_;
  bool cut_ = false;  // before a second call
  const char* finish_reason_ = "";
};

}  // namespace lodestone

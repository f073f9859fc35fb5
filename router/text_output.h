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

// Tokens of one answer to its text: whole characters, reasoning apart from content, nothing from
// the first stop string on. Not thread-safe.
class TextOutput {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
    bool is_reasoning = false;  // the token belongs to the reasoning
  };
  // `model` must outlive this. REQUIRES: the stop strings of `api` are within the limits.
  TextOutput(const ModelInfo& model, const ApiRequest& api);

  // The text that is complete after this token. Nothing once stopped.
  Piece Push(TokenId token);
  // What is still held back. Call once, at the end.
  Piece Finish();
  bool stopped() const { return stop_.stopped(); }

 private:
  StopMatcher stop_;
  std::optional<OutputParser> parser_;        // chat
  std::optional<Detokenizer> detokenizer_;    // all others
};

}  // namespace lodestone

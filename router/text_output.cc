#include "router/text_output.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "base/logging.h"

namespace lodestone {
namespace {

StopMatcher MakeMatcher(const ApiRequest& api) {
  absl::StatusOr<StopMatcher> matcher =
      StopMatcher::Create(api.stop, api.include_stop_text ? StopMatcher::StopText::kInclude
                                                          : StopMatcher::StopText::kExclude);
  CHECK(matcher.ok()) << matcher.status().ToString();
  return *std::move(matcher);
}

// Ids of calls must not meet again in a conversation.
std::optional<std::string> CallIdPrefix(const ApiRequest& api) {
  if (!api.calls_tools) return std::nullopt;
  return absl::StrCat("call_", RequestId::Random().ToString().substr(0, 24), "_");
}

}  // namespace

TextOutput::TextOutput(const ModelInfo& model, const ApiRequest& api)
    : stop_(MakeMatcher(api)),
      eos_(model.chat_format->tokens().eos),
      ignores_eos_(api.sampling.ignore_eos),
      one_call_(!api.parallel_tool_calls) {
  if (api.api == ApiKind::kChat) {
    parser_.emplace(
        model.chat_format.get(), api.render.mode,
        ignores_eos_ ? OutputParser::EndToken::kIgnored : OutputParser::EndToken::kEnds,
        CallIdPrefix(api));
  } else {
    detokenizer_.emplace(model.tokenizer.get(), api.skip_special_tokens
                                                    ? AddedTokenText::kSkipSpecial
                                                    : AddedTokenText::kKeep);
  }
}

TextOutput::Piece TextOutput::Push(TokenId token) {
  if (stopped()) return {};
  if (detokenizer_.has_value()) return Take({.content = detokenizer_->Push(token)});
  const bool is_reasoning = parser_->in_reasoning();
  Piece piece = Take(parser_->Push(token));
  piece.is_reasoning = is_reasoning;
  return piece;
}

TextOutput::Piece TextOutput::Take(ChatDelta delta) {
  Piece piece;
  piece.reasoning = std::move(delta.reasoning);
  for (ToolCallDelta& call : delta.tool_calls) {
    cut_ = cut_ || (one_call_ && call.index > 0);
    if (!cut_) piece.tool_calls.push_back(std::move(call));
  }
  piece.content = stop_.Push(delta.content);
  return piece;
}

TextOutput::Piece TextOutput::Finish(FinishReason reason) {
  const bool ended = reason == FinishReason::kStop;
  Piece piece;
  if (!stopped()) {
    if (detokenizer_.has_value()) {
      piece = Take({.content = detokenizer_->Finish()});
    } else {
      // Workers do not deliver the end token, but what it ends is not cut off.
      piece = Take(ended && !ignores_eos_ ? parser_->Push(eos_) : parser_->Finish());
    }
    piece.content += stop_.Finish();
  }
  const bool calls = parser_.has_value() && (cut_ || parser_->calls_complete());
  if (stop_.stopped()) {
    finish_reason_ = "stop";
  } else if (ended || cut_) {
    finish_reason_ = calls ? "tool_calls" : "stop";
  } else {
    finish_reason_ = "length";
  }
  return piece;
}

}  // namespace lodestone

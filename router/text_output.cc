#include "router/text_output.h"

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

}  // namespace

TextOutput::TextOutput(const ModelInfo& model, const ApiRequest& api) : stop_(MakeMatcher(api)) {
  if (api.api == ApiKind::kChat) {
    parser_.emplace(model.chat_format.get(), api.render.mode,
                    api.sampling.ignore_eos ? OutputParser::EndToken::kIgnored
                                            : OutputParser::EndToken::kEnds);
  } else {
    detokenizer_.emplace(model.tokenizer.get(), api.skip_special_tokens
                                                    ? AddedTokenText::kSkipSpecial
                                                    : AddedTokenText::kKeep);
  }
}

TextOutput::Piece TextOutput::Push(TokenId token) {
  Piece piece;
  if (stopped()) return piece;
  if (detokenizer_.has_value()) {
    piece.content = stop_.Push(detokenizer_->Push(token));
    return piece;
  }
  piece.is_reasoning = parser_->in_reasoning();
  ChatDelta delta = parser_->Push(token);
  piece.reasoning = std::move(delta.reasoning);
  piece.content = stop_.Push(delta.content);
  return piece;
}

TextOutput::Piece TextOutput::Finish() {
  Piece piece;
  if (stopped()) return piece;
  ChatDelta delta;
  if (detokenizer_.has_value()) {
    delta.content = detokenizer_->Finish();
  } else {
    delta = parser_->Finish();
  }
  piece.reasoning = std::move(delta.reasoning);
  piece.content = stop_.Push(delta.content);
  piece.content += stop_.Finish();
  return piece;
}

}  // namespace lodestone

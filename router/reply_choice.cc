#include "router/reply_choice.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace lodestone {
namespace {

// Tokens of a prompt with log-probabilities in one event of a stream: some 10 KB.
constexpr size_t kEchoTokens = 64;

}  // namespace

HttpReply::Choice::Choice(HttpReply* reply, int64_t index, const Request* request)
    : reply_(*reply),
      index_(index),
      request_(*request),
      text_(*reply->context_.service->model, *reply->context_.api),
      echo_(reply->context_.api->echo),
      with_role_(reply->context_.api->api == ApiKind::kChat) {}

ReplyPiece HttpReply::Choice::NewPiece() const {
  ReplyPiece piece;
  piece.choice = index_;
  piece.logprobs = reply_.context_.api->logprobs;
  piece.text_offset = text_offset_;
  return piece;
}

void HttpReply::Choice::AddToken(const GeneratedToken& token, ReplyPiece& piece) {
  piece.tokens.push_back(token);
  text_offset_ += CountCharacters(reply_.context_.service->model->tokenizer->TokenBytes(token.id));
}

// The log-probabilities of the first token do not exist.
ReplyPiece HttpReply::Choice::ScoredPrompt(const PromptLogprobs& logprobs, size_t begin, size_t end,
                                           Detokenizer& text) {
  ReplyPiece piece = NewPiece();
  piece.num_unscored = begin == 0 ? 1 : 0;
  const size_t num_top =
      logprobs.logprobs.empty() ? 0 : logprobs.top.size() / logprobs.logprobs.size();
  for (size_t i = begin; i < end; ++i) {
    GeneratedToken token;
    token.id = request_.prompt[i];
    if (i > 0) {
      token.logprob = logprobs.logprobs[i - 1];
      const auto top = logprobs.top.begin() + static_cast<std::ptrdiff_t>((i - 1) * num_top);
      token.top_logprobs.assign(top, top + static_cast<std::ptrdiff_t>(num_top));
    }
    piece.content += text.Push(token.id);
    AddToken(token, piece);
  }
  return piece;
}

Task<absl::Status> HttpReply::Choice::WritePrompt(const PromptLogprobs& logprobs) {
  if (!std::exchange(echo_, false)) co_return absl::OkStatus();
  Detokenizer text(reply_.context_.service->model->tokenizer.get());
  for (size_t begin = 0; begin < request_.prompt.size(); begin += kEchoTokens) {
    const size_t end = std::min(begin + kEchoTokens, request_.prompt.size());
    std::vector<ReplyPiece> pieces;
    pieces.push_back(ScoredPrompt(logprobs, begin, end, text));
    if (end == request_.prompt.size()) pieces.back().content += text.Finish();
    CO_RETURN_IF_ERROR(co_await reply_.Send(index_, std::move(pieces), 0));
  }
  co_return absl::OkStatus();
}

void HttpReply::Choice::TakeEcho(std::vector<ReplyPiece>& pieces) {
  if (!std::exchange(echo_, false)) return;
  ReplyPiece piece = NewPiece();
  piece.content = Decode(*reply_.context_.service->model->tokenizer, request_.prompt);
  pieces.push_back(std::move(piece));
}

void HttpReply::Choice::TakeToken(const GeneratedToken& token, std::vector<ReplyPiece>& pieces) {
  TextOutput::Piece text = text_.Push(token.id);
  ++num_tokens_;
  ++reply_.usage_.completion_tokens;
  if (text.is_reasoning) ++reply_.usage_.reasoning_tokens;
  ReplyPiece piece = NewPiece();
  piece.with_role = with_role_;
  piece.reasoning = std::move(text.reasoning);
  piece.content = std::move(text.content);
  piece.tool_calls = std::move(text.tool_calls);
  if (piece.logprobs && !text.is_reasoning) AddToken(token, piece);
  const bool is_sent = piece.with_role || piece.has_text() || !piece.tokens.empty() ||
                       num_tokens_ == 1 || reply_.context_.api->continuous_usage;
  if (!is_sent) return;
  with_role_ = false;
  pieces.push_back(std::move(piece));
}

Task<absl::StatusOr<TokenSink::Written>> HttpReply::Choice::Write(
    std::span<const GeneratedToken> tokens) {
  std::vector<ReplyPiece> pieces;
  TakeEcho(pieces);
  Written written;
  for (const GeneratedToken& token : tokens) {
    if (text_.stopped()) break;
    TakeToken(token, pieces);
    ++written.num_tokens;
  }
  const auto num_tokens = static_cast<int64_t>(written.num_tokens);
  const absl::Status sent = co_await reply_.Send(index_, std::move(pieces), num_tokens);
  if (!sent.ok()) co_return sent;
  written.stopped = text_.stopped();
  co_return written;
}

Task<void> HttpReply::Choice::End(const Outcome& outcome) {
  std::vector<ReplyPiece> echo;
  TakeEcho(echo);
  if (!echo.empty()) {
    const absl::Status sent = co_await reply_.Send(index_, std::move(echo), 0);
    if (!sent.ok()) co_return;
  }
  TextOutput::Piece text = text_.Finish(outcome.finish_reason);
  ReplyPiece last = NewPiece();
  last.with_role = std::exchange(with_role_, false);
  last.reasoning = std::move(text.reasoning);
  last.content = std::move(text.content);
  last.tool_calls = std::move(text.tool_calls);
  last.finish_reason = text_.finish_reason();
  reply_.SendLast(std::move(last));
}

}  // namespace lodestone

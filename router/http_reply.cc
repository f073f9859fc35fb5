#include "router/http_reply.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "text/detokenizer.h"

namespace lodestone {
namespace {

constexpr int64_t kBufferedBytes = 128 << 10;  // of a stream, before its tokens are awaited

double SecondsBetween(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

std::vector<std::pair<std::string, std::string>> CommonHeaders(const ReplyContext& context) {
  const double ms = SecondsBetween(context.received_at, RealClock()->Now()) * 1e3;
  return {{"x-request-id", context.request_id},
          {"openai-processing-ms", absl::StrCat(static_cast<int64_t>(ms))}};
}

std::string ServerTiming(const RequestTimings& timings) {
  return absl::StrCat("queue;dur=", timings.queue_seconds * 1e3, ", prefill;dur=",
                      timings.prefill_seconds * 1e3, ", handoff;dur=", timings.handoff_seconds * 1e3,
                      ", decode;dur=", timings.decode_seconds * 1e3);
}

// Collects everything and sends it at the end.
class BodyReply final : public HttpReply {
 public:
  explicit BodyReply(ReplyContext context) : HttpReply(std::move(context)) {}

  Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) override {
    const int64_t before = num_tokens_;
    for (const ReplyPiece& piece : ToPieces(tokens)) Append(piece);
    co_return WrittenSince(before);
  }

  Task<void> BeginChoice(int64_t choice, const std::vector<TokenId>& prompt) override {
    StartChoice(choice, prompt);
    ReplyPiece& piece = choices_.emplace_back();
    piece.choice = choice;
    piece.logprobs = context_.api->logprobs;
    piece.content = echo_text_;
    piece.text_offset = text_offset_;
    co_return;
  }

  Task<void> EndChoice(const Outcome& outcome) override {
    ReplyPiece last = LastPiece(outcome);
    Append(last);
    choices_.back().finish_reason = std::move(last.finish_reason);
    AddUsage(outcome);
    last_ = outcome;
    co_return;
  }

  Task<void> Finish() override {
    HttpResponse response;
    response.headers = CommonHeaders(context_);
    response.headers.emplace_back("x-lodestone-prefill", last_.prefill_worker);
    response.headers.emplace_back("x-lodestone-decode", last_.decode_worker);
    response.headers.emplace_back("Server-Timing", ServerTiming(last_.timings));
    response.body = reply_.Body(choices_, usage_, context_.debug ? DebugMembers(last_) : "");
    co_await context_.exchange->Send(std::move(response));
    first_token_written_ = true;
  }

  Task<void> Fail(const ApiError& error) override {
    HttpResponse response = ErrorResponse(error, context_.request_id);
    co_await context_.exchange->Send(std::move(response));
  }

 private:
  void Append(const ReplyPiece& piece) {
    ReplyPiece& choice = choices_.back();
    choice.reasoning += piece.reasoning;
    choice.content += piece.content;
    choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }

  std::vector<ReplyPiece> choices_;
  Outcome last_;
};

// Server-sent events. The head leaves with the first token or keep-alive, so that what fails
// earlier still has its HTTP status.
class StreamReply final : public HttpReply {
 public:
  explicit StreamReply(ReplyContext context)
      : HttpReply(std::move(context)),
        keepalive_(*context_.service->loop),
        ended_(*context_.service->loop),
        last_write_(RealClock()->Now()) {
    keepalive_.Spawn(KeepAlive());
  }

  Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) override {
    const bool is_first = !first_token_written_;
    const int64_t before = num_tokens_;
    const std::vector<ReplyPiece> pieces = ToPieces(tokens);
    for (const ReplyPiece& piece : pieces) SendPiece(piece);
    const absl::Status drained = co_await context_.exchange->Drain(is_first ? 0 : kBufferedBytes);
    if (!drained.ok()) co_return drained;
    Measure(num_tokens_ - before);
    co_return WrittenSince(before);
  }

  Task<void> BeginChoice(int64_t choice, const std::vector<TokenId>& prompt) override {
    StartChoice(choice, prompt);
    if (echo_text_.empty()) co_return;
    ReplyPiece piece;
    piece.choice = choice;
    piece.content = echo_text_;
    SendPiece(piece);
  }

  Task<void> EndChoice(const Outcome& outcome) override {
    const std::optional<Usage> usage = ContinuousUsage();
    ReplyPiece last = LastPiece(outcome);
    if (last.with_role || !last.content.empty() || !last.reasoning.empty()) {
      ReplyPiece text = last;
      text.finish_reason.reset();
      SendPiece(text);
      last.with_role = false;
      last.content.clear();
      last.reasoning.clear();
    }
    last.logprobs = false;
    SendEvent(reply_.Chunk(last, usage));
    AddUsage(outcome);
    last_ = outcome;
    co_return;
  }

  Task<void> Finish() override {
    co_await StopKeepAlive();
    if (context_.api->include_usage) SendEvent(reply_.UsageChunk(usage_));
    SendEvent("[DONE]");
    co_await context_.exchange->EndStream(false);
  }

  Task<void> Fail(const ApiError& error) override {
    co_await StopKeepAlive();
    if (!started_) {
      HttpResponse response = ErrorResponse(error, context_.request_id);
      co_await context_.exchange->Send(std::move(response));
      co_return;
    }
    SendEvent(error.Body(context_.request_id));
    co_await context_.exchange->EndStream(true);
  }

 private:
  void SendPiece(const ReplyPiece& piece) { SendEvent(reply_.Chunk(piece, ContinuousUsage())); }

  void SendEvent(std::string_view data) {
    EnsureStarted();
    std::string event = "data: ";
    event += data;
    event += "\n\n";
    context_.exchange->Write(event);
    last_write_ = RealClock()->Now();
  }

  void EnsureStarted() {
    if (std::exchange(started_, true)) return;
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = CommonHeaders(context_);
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    context_.exchange->StartStream(std::move(head));
  }

  std::optional<Usage> ContinuousUsage() const {
    if (!context_.api->continuous_usage) return std::nullopt;
    return UsageSoFar();
  }

  void Measure(int64_t num_tokens) {
    const TimePoint now = RealClock()->Now();
    RouterMetrics& metrics = *context_.service->router_metrics;
    if (!std::exchange(first_token_written_, true)) {
      metrics.FirstTokenWritten(SecondsBetween(context_.received_at, now));
      --num_tokens;
      if (num_tokens > 0) metrics.TokensWritten(num_tokens, 0);
    } else if (num_tokens > 0) {
      metrics.TokensWritten(num_tokens, SecondsBetween(last_tokens_, now) /
                                            static_cast<double>(num_tokens));
    }
    last_tokens_ = now;
  }

  // The pause before the next keep-alive; nullopt: none is wanted.
  std::optional<std::chrono::milliseconds> Pause(bool is_first) const {
    const RouterConfig& config = *context_.service->config;
    if (const std::optional<double> seconds = context_.api->sse_ping_interval_seconds) {
      if (*seconds <= 0) return std::nullopt;
      return std::chrono::milliseconds(std::max<int64_t>(10, static_cast<int64_t>(*seconds * 1e3)));
    }
    if (config.sse_keepalive == "off") return std::nullopt;
    return is_first ? config.sse_keepalive_after : config.sse_keepalive_every;
  }

  Task<void> KeepAlive() {
    bool is_first = true;
    while (!stopped_) {
      const std::optional<std::chrono::milliseconds> pause = Pause(is_first);
      if (!pause.has_value()) co_return;
      const TimePoint due = last_write_ + *pause;
      if (RealClock()->Now() < due) {
        co_await ended_.WaitUntil(due);
        continue;
      }
      is_first = false;
      if (context_.service->config->sse_keepalive == "comment") {
        EnsureStarted();
        context_.exchange->Write(": keep-alive\n\n");
        last_write_ = RealClock()->Now();
      } else {
        ReplyPiece empty;
        empty.choice = choice_;
        SendPiece(empty);
      }
    }
  }

  Task<void> StopKeepAlive() {
    stopped_ = true;
    ended_.Notify();
    co_await keepalive_.WaitUntil(TimePoint::max());
  }

  TaskGroup keepalive_;
  Event ended_;
  TimePoint last_write_;
  TimePoint last_tokens_;
  bool started_ = false;
  bool stopped_ = false;
  Outcome last_;
};

ReplyHead MakeHead(const ReplyContext& context) {
  ReplyHead head;
  head.api = context.api->api;
  const bool is_chat = head.api == ApiKind::kChat;
  head.id = absl::StrCat(is_chat ? "chatcmpl-" : "cmpl-", RequestId::Random().ToString());
  head.model = context.api->model;
  head.created = std::chrono::duration_cast<std::chrono::seconds>(
                     RealClock()->WallNow().time_since_epoch())
                     .count();
  head.usage_null = context.api->include_usage;
  return head;
}

}  // namespace

HttpResponse ErrorResponse(const ApiError& error, const std::string& request_id) {
  HttpResponse response;
  response.status = error.http_status;
  response.headers.emplace_back("x-request-id", request_id);
  if (error.retry_after.has_value()) {
    const int64_t ms = error.retry_after->count();
    response.headers.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(1, (ms + 999) / 1000)));
    response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
  }
  if (error.should_retry.has_value()) {
    response.headers.emplace_back("x-should-retry", *error.should_retry ? "true" : "false");
  }
  if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
  response.body = error.Body(request_id);
  return response;
}

HttpReply::HttpReply(ReplyContext context)
    : context_(std::move(context)),
      reply_(MakeHead(context_), context_.service->model->tokenizer.get()) {}

std::unique_ptr<HttpReply> HttpReply::Create(ReplyContext context) {
  if (context.api->stream) return std::make_unique<StreamReply>(std::move(context));
  return std::make_unique<BodyReply>(std::move(context));
}

void HttpReply::StartChoice(int64_t choice, const std::vector<TokenId>& prompt) {
  text_ = std::make_unique<TextOutput>(*context_.service->model, *context_.api);
  choice_ = choice;
  with_role_ = context_.api->api == ApiKind::kChat;
  num_tokens_ = 0;
  num_reasoning_tokens_ = 0;
  num_prompt_tokens_ = static_cast<int64_t>(prompt.size());
  echo_text_ = context_.api->echo ? Decode(*context_.service->model->tokenizer, prompt) : "";
  text_offset_ = CountCharacters(echo_text_);
}

std::vector<ReplyPiece> HttpReply::ToPieces(std::span<const GeneratedToken> tokens) {
  std::vector<ReplyPiece> pieces;
  for (const GeneratedToken& token : tokens) {
    if (text_->stopped()) break;
    TextOutput::Piece text = text_->Push(token.id);
    ++num_tokens_;
    if (text.is_reasoning) ++num_reasoning_tokens_;
    ReplyPiece piece;
    piece.choice = choice_;
    piece.with_role = with_role_;
    piece.reasoning = std::move(text.reasoning);
    piece.content = std::move(text.content);
    piece.logprobs = context_.api->logprobs;
    piece.text_offset = text_offset_;
    if (piece.logprobs && !text.is_reasoning) {
      piece.tokens.push_back(token);
      text_offset_ += CountCharacters(context_.service->model->tokenizer->TokenBytes(token.id));
    }
    const bool says_something = piece.with_role || !piece.reasoning.empty() ||
                                !piece.content.empty() || !piece.tokens.empty() || num_tokens_ == 1 ||
                                context_.api->continuous_usage;
    if (!says_something) continue;
    with_role_ = false;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

TokenSink::Written HttpReply::WrittenSince(int64_t num_tokens_before) const {
  return Written{.num_tokens = static_cast<size_t>(num_tokens_ - num_tokens_before),
                 .stopped = text_->stopped()};
}

ReplyPiece HttpReply::LastPiece(const Outcome& outcome) {
  TextOutput::Piece text = text_->Finish();
  ReplyPiece piece;
  piece.choice = choice_;
  piece.with_role = std::exchange(with_role_, false);
  piece.reasoning = std::move(text.reasoning);
  piece.content = std::move(text.content);
  piece.logprobs = context_.api->logprobs;
  piece.text_offset = text_offset_;
  // A stop string may only become certain with the text held back until now.
  const bool stopped = text_->stopped() || outcome.finish_reason == FinishReason::kStop;
  piece.finish_reason = stopped ? "stop" : "length";
  return piece;
}

void HttpReply::AddUsage(const Outcome& outcome) {
  usage_.prompt_tokens += outcome.usage.prompt_tokens;
  usage_.completion_tokens += outcome.usage.completion_tokens;
  usage_.cached_tokens += outcome.usage.cached_tokens;
  usage_.reasoning_tokens += num_reasoning_tokens_;
  num_prompt_tokens_ = 0;
  num_tokens_ = 0;
  num_reasoning_tokens_ = 0;
}

Usage HttpReply::UsageSoFar() const {
  Usage usage = usage_;
  usage.prompt_tokens += num_prompt_tokens_;
  usage.completion_tokens += num_tokens_;
  usage.reasoning_tokens += num_reasoning_tokens_;
  return usage;
}

}  // namespace lodestone

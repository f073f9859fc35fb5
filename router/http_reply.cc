#include "router/http_reply.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <new>

#include <absl/strings/str_cat.h>

#include "base/logging.h"
#include "base/status_macros.h"
#include "router/limits.h"
#include "router/reply_choice.h"

namespace lodestone {
namespace {

// Of one event: as JSON it is at most six times as long.
constexpr size_t kMaxEventText = kMaxEventBytes / 8;
constexpr int64_t kBufferedBytes = 128 << 10;  // of a stream, before its tokens are awaited

// Where a part of `text` from `begin` ends: between characters, after at most `limit` bytes.
size_t PartEnd(std::string_view text, size_t begin, size_t limit) {
  if (text.size() - begin <= limit) return text.size();
  size_t end = begin + limit;
  while (end > begin + 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

// What one event holds each; a finish reason goes with the last one.
std::vector<ReplyPiece> InParts(ReplyPiece piece) {
  std::vector<ReplyPiece> parts;
  const std::string text = std::move(piece.content);
  if (text.size() <= kMaxEventText || !piece.tokens.empty()) {
    piece.content = text;
    parts.push_back(std::move(piece));
    return parts;
  }
  std::optional<std::string> finish_reason = std::exchange(piece.finish_reason, std::nullopt);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = PartEnd(text, begin, kMaxEventText);
    ReplyPiece& part = parts.emplace_back(piece);
    part.content = text.substr(begin, end - begin);
    piece.with_role = false;
    piece.reasoning.clear();
    piece.tool_calls.clear();
    begin = end;
  }
  parts.back().finish_reason = std::move(finish_reason);
  return parts;
}

double SecondsBetween(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

std::vector<std::pair<std::string, std::string>> CommonHeaders(const ReplyContext& context) {
  const double ms = SecondsBetween(context.received_at, RealClock()->Now()) * 1e3;
  return {{"x-request-id", context.request_id},
          {"openai-processing-ms", absl::StrCat(static_cast<int64_t>(ms))}};
}

std::string ServerTiming(const RequestTimings& timings) {
  return absl::StrCat("queue;dur=", timings.queue_seconds * 1e3,
                      ", prefill;dur=", timings.prefill_seconds * 1e3,
                      ", handoff;dur=", timings.handoff_seconds * 1e3,
                      ", decode;dur=", timings.decode_seconds * 1e3);
}

// Collects everything and sends it at the end.
class BodyReply final : public HttpReply {
 public:
  explicit BodyReply(ReplyContext context) : HttpReply(std::move(context)) {}

  Task<void> Finish() override {
    HttpResponse response;
    response.headers = CommonHeaders(context_);
    response.headers.emplace_back("x-lodestone-prefill", last_.prefill_worker);
    response.headers.emplace_back("x-lodestone-decode", last_.decode_worker);
    response.headers.emplace_back("Server-Timing", ServerTiming(last_.timings));
    response.body = reply_.Body(whole_, usage_, context_.debug ? DebugMembers(last_) : "");
    co_await context_.exchange->Send(std::move(response));
  }

  Task<void> Fail(const ApiError& error) override {
    HttpResponse response = ErrorResponse(error, context_.request_id);
    co_await context_.exchange->Send(std::move(response));
  }

 protected:
  Task<absl::Status> Send(int64_t, std::vector<ReplyPiece> pieces, int64_t) override {
    for (ReplyPiece& piece : pieces) Append(std::move(piece));
    co_return absl::OkStatus();
  }
  void SendLast(ReplyPiece last) override {
    const size_t choice = static_cast<size_t>(last.choice);
    std::optional<std::string> reason = std::move(last.finish_reason);
    Append(std::move(last));
    whole_[choice].finish_reason = std::move(reason);
  }

 private:
  void Append(ReplyPiece piece) {
    const size_t number = static_cast<size_t>(piece.choice);
    while (whole_.size() <= number) {
      ReplyPiece& empty = whole_.emplace_back();
      empty.choice = std::ssize(whole_) - 1;
      empty.logprobs = piece.logprobs;
    }
    ReplyPiece& choice = whole_[number];
    if (choice.tokens.empty()) {
      choice.num_unscored = piece.num_unscored;
      choice.text_offset = piece.text_offset;
    }
    choice.reasoning += piece.reasoning;
    choice.content += piece.content;
    std::move(piece.tool_calls.begin(), piece.tool_calls.end(),
              std::back_inserter(choice.tool_calls));
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(choice.tokens));
  }

  std::vector<ReplyPiece> whole_;  // by choice
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
    // Behind what is queued, not beside it: there may be no memory for both.
    const absl::Status drained = co_await context_.exchange->Drain(0);
    if (drained.ok()) SendEvent(error.Body(context_.request_id));
    co_await context_.exchange->EndStream(true);
  }

 protected:
  Task<absl::Status> Send(int64_t choice, std::vector<ReplyPiece> pieces,
                          int64_t num_tokens) override {
    const bool is_first = !first_token_written_ && num_tokens > 0;
    for (ReplyPiece& piece : pieces) {
      for (const ReplyPiece& part : InParts(std::move(piece))) {
        CO_RETURN_IF_ERROR(co_await context_.exchange->Drain(kMaxOutputBytes - kMaxEventBytes));
        SendEvent(reply_.Chunk(part, ContinuousUsage()));
      }
    }
    const absl::Status drained = co_await context_.exchange->Drain(is_first ? 0 : kBufferedBytes);
    if (!drained.ok()) co_return drained;
    if (num_tokens > 0) Measure(choice, num_tokens);
    co_return absl::OkStatus();
  }

  void SendLast(ReplyPiece last) override {
    if (last.with_role || last.has_text()) {
      ReplyPiece text = last;
      text.finish_reason.reset();
      SendPiece(std::move(text));
      last.with_role = false;
      last.content.clear();
      last.reasoning.clear();
      last.tool_calls.clear();
    }
    last.logprobs = false;
    SendPiece(std::move(last));
  }

 private:
  void SendPiece(ReplyPiece piece) {
    for (const ReplyPiece& part : InParts(std::move(piece))) {
      SendEvent(reply_.Chunk(part, ContinuousUsage()));
    }
  }

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
    return usage_;
  }

  // A choice's first token has no gap before it.
  void Measure(int64_t choice, int64_t num_tokens) {
    const TimePoint now = RealClock()->Now();
    const auto [last, is_new] = last_tokens_.try_emplace(choice, now);
    const TimePoint before = std::exchange(last->second, now);
    RouterMetrics& metrics = *context_.service->router_metrics;
    if (!std::exchange(first_token_written_, true)) {
      metrics.FirstTokenWritten(SecondsBetween(context_.received_at, now));
    }
    const int64_t num_gaps = num_tokens - (is_new ? 1 : 0);
    if (num_gaps == 0) return;
    metrics.TokensWritten(num_gaps, SecondsBetween(before, now) / static_cast<double>(num_gaps));
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

  // Without memory for a sign of life the client gets none.
  Task<void> KeepAlive() {
    try {
      co_await SendKeepAlives();
    } catch (const std::bad_alloc&) {
      LOG_EVERY_SECONDS(WARNING, 5) << "no memory to keep a stream alive";
    }
  }

  Task<void> SendKeepAlives() {
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
        SendPiece(ReplyPiece());
      }
    }
  }

  Task<void> StopKeepAlive() {
    stopped_ = true;
    ended_.Notify();
    const std::function<void()> wake = [this] { ended_.Notify(); };
    co_await keepalive_.WaitForEnd(RealClock()->Now() + kLatePause, wake);
  }

  TaskGroup keepalive_;
  Event ended_;
  TimePoint last_write_;
  std::map<int64_t, TimePoint> last_tokens_;  // by choice
  bool started_ = false;
  bool stopped_ = false;
  bool first_token_written_ = false;
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
    response.headers.emplace_back("Retry-After",
                                  absl::StrCat(std::max<int64_t>(1, (ms + 999) / 1000)));
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
HttpReply::~HttpReply() = default;

std::unique_ptr<HttpReply> HttpReply::Create(ReplyContext context) {
  if (context.api->stream) return std::make_unique<StreamReply>(std::move(context));
  return std::make_unique<BodyReply>(std::move(context));
}

std::vector<TokenSink*> HttpReply::AddPrompt(const Request& request) {
  usage_.prompt_tokens += std::ssize(request.prompt);
  std::vector<TokenSink*> sinks;
  for (size_t i = 0; i <= request.fork_seeds.size(); ++i) {
    const int64_t index = std::ssize(choices_);
    choices_.push_back(std::make_unique<Choice>(this, index, &request));
    sinks.push_back(choices_.back().get());
  }
  return sinks;
}

void HttpReply::EndPrompt(const Outcome& outcome) {
  usage_.cached_tokens += outcome.usage.cached_tokens;
  last_ = outcome;
  last_.usage = usage_;
}

}  // namespace lodestone

// The two ways an answer leaves over HTTP: one body, or a stream of server-sent events.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/http_server.h"
#include "router/http_service.h"
#include "router/openai_reply.h"
#include "router/text_output.h"

namespace lodestone {

// Headers of every answer to a request that has an id.
struct ReplyContext {
  const ServiceContext* service = nullptr;
  const ApiRequest* api = nullptr;
  HttpExchange* exchange = nullptr;
  TimePoint received_at;
  std::string request_id;  // echoed or ours
  bool debug = false;      // timings and workers in the answer
};

HttpResponse ErrorResponse(const ApiError& error, const std::string& request_id);

// One answer: its choices one after the other, then the end. Loop only.
class HttpReply : public TokenSink {
 public:
  static std::unique_ptr<HttpReply> Create(ReplyContext context);

  // Before the tokens of a choice; `prompt` is its tokens.
  virtual Task<void> BeginChoice(int64_t choice, const std::vector<TokenId>& prompt) = 0;
  virtual Task<void> EndChoice(const Outcome& outcome) = 0;
  virtual Task<void> Finish() = 0;
  virtual Task<void> Fail(const ApiError& error) = 0;

  bool first_token_written() const { return first_token_written_; }
  const Usage& usage() const { return usage_; }

 protected:
  explicit HttpReply(ReplyContext context);
  // What these tokens add to the choice, one piece a token.
  std::vector<ReplyPiece> ToPieces(std::span<const GeneratedToken> tokens);
  // The text still held back, with the finish reason.
  Written WrittenSince(int64_t num_tokens_before) const;
  ReplyPiece LastPiece(const Outcome& outcome);
  void StartChoice(int64_t choice, const std::vector<TokenId>& prompt);
  void AddUsage(const Outcome& outcome);
  Usage UsageSoFar() const;

  const ReplyContext context_;
  const OpenAiReply reply_;
  std::unique_ptr<TextOutput> text_;
  int64_t choice_ = 0;
  int64_t text_offset_ = 0;
  bool with_role_ = true;   // the next piece begins the choice
  int64_t num_prompt_tokens_ = 0;  // of this choice
  int64_t num_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
  std::string echo_text_;
  Usage usage_;             // of ended choices
  bool first_token_written_ = false;
};

}  // namespace lodestone

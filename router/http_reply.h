// The two ways an answer leaves over HTTP: one body, or a stream of server-sent events.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/http_server.h"
#include "router/http_service.h"
#include "router/openai_reply.h"

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

// One answer: prompt after prompt, the choices of a prompt side by side, then the end. Loop only.
class HttpReply {
 public:
  static std::unique_ptr<HttpReply> Create(ReplyContext context);
  virtual ~HttpReply();

  // The choices of the next prompt: a sink for each, until the reply dies. `request` must outlive
  // it.
  std::vector<TokenSink*> AddPrompt(const Request& request);
  // All choices of the prompt have ended.
  void EndPrompt(const Outcome& outcome);
  virtual Task<void> Finish() = 0;
  virtual Task<void> Fail(const ApiError& error) = 0;

  const Usage& usage() const { return usage_; }  // so far

 protected:
  class Choice;
  explicit HttpReply(ReplyContext context);
  // Sends what a choice adds, which `num_tokens` new tokens made. CANCELLED: the client is gone.
  virtual Task<absl::Status> Send(int64_t choice, std::vector<ReplyPiece> pieces,
                                  int64_t num_tokens) = 0;
  // The same for the last of a choice, with its finish reason.
  virtual void SendLast(ReplyPiece last) = 0;

  const ReplyContext context_;
  const OpenAiReply reply_;
  std::vector<std::unique_ptr<Choice>> choices_;
  Usage usage_;
  Outcome last_;  // of the last prompt that ended
};

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "router/http_reply.h"
#include "router/text_output.h"
#include "text/detokenizer.h"

namespace lodestone {

// One choice of an answer: turns its tokens into the pieces that the reply sends.
class HttpReply::Choice final : public TokenSink {
 public:
  Choice(HttpReply* reply, int64_t index, const Request* request);

  Task<absl::Status> WritePrompt(const PromptLogprobs& logprobs) override;
  Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) override;
  Task<void> End(const Outcome& outcome) override;

 private:
  ReplyPiece NewPiece() const;
  // The prompt's text, if it is still to be sent.
  void TakeEcho(std::vector<ReplyPiece>& pieces);
  ReplyPiece ScoredPrompt(const PromptLogprobs& logprobs, size_t begin, size_t end,
                          Detokenizer& text);
  void TakeToken(const GeneratedToken& token, std::vector<ReplyPiece>& pieces);
  void AddToken(const GeneratedToken& token, ReplyPiece& piece);

  HttpReply& reply_;
  const int64_t index_;
  const Request& request_;
  TextOutput text_;
  bool echo_;              // the prompt is still to be sent
  bool with_role_;         // the next piece begins the choice
  int64_t num_tokens_ = 0;
  int64_t text_offset_ = 0;  // characters before the next token
};

}  // namespace lodestone

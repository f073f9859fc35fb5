#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/config.h"

namespace lodestone {

// `lodestone ask`: one question, the answer streamed to stdout.
struct AskConfig {
  std::string url = "http://127.0.0.1:8080";
  std::string question;
  std::string model;
  std::string api_key;
  int64_t max_tokens = 256;
  std::chrono::milliseconds timeout{600'000};

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(question, "question", "what to ask; - reads it from stdin", "Question",
          FieldTraits{.required = true, .positional = true});
    visit(url, "url", "http://HOST:PORT of the server", "Server");
    visit(model, "served-model", "name of the model; empty = the first of /v1/models", "Server");
    visit(api_key, "api-key", "bearer key of the server", "Server", FieldTraits{.secret = true});
    visit(max_tokens, "max-tokens", "longest answer", "Question");
    visit(timeout, "timeout", "longest wait for the whole answer", "Server");
  }
};

int RunAsk(int argc, const char* const* argv);

}  // namespace lodestone

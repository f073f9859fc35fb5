#include "cli/ask.h"

#include <cstdio>
#include <iostream>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/openai_client.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone ask";
constexpr std::string_view kDescription =
    "Asks one question of any OpenAI-compatible server and streams the answer.\n"
    "  lodestone ask --url http://127.0.0.1:8080 \"What is the secret code for Vera Nolan?\"";

absl::StatusOr<ChatAnswer> AskOnce(const AskConfig& config) {
  ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(config.url));
  const OpenAiClient client{HttpClient(std::move(url), config.api_key)};
  std::string model = config.model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> models, client.Models(config.timeout));
    model = models.front();
  }
  std::string question = config.question;
  if (question == "-") {
    question.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  return client.AskStreamed(model, question, config.max_tokens, config.timeout,
                            [](std::string_view text) {
                              std::fwrite(text.data(), 1, text.size(), stdout);
                              std::fflush(stdout);
                            });
}

int Ask(const AskConfig& config) {
  const absl::StatusOr<ChatAnswer> answer = AskOnce(config);
  if (!answer.ok()) return PrintFailure(kName, answer.status());
  std::printf("\n");
  return 0;
}

}  // namespace

int RunAsk(int argc, const char* const* argv) {
  return RunCommand<AskConfig>(kName, kDescription, argc, argv, Ask);
}

}  // namespace lodestone

// Bodies of the OpenAI routes. First byte: bit 0 the route, bit 1 strict.
// Properties: a refusal is a 4xx whose body is JSON; what is accepted is within every limit, is
// UTF-8, and is accepted again when nothing unknown is in it and the rules are strict.
#include <boost/json/parse.hpp>

#include <cmath>

#include "router/openai_schema.h"
#include "tests/fuzz/fuzz_input.h"
#include "text/stop_strings.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr int32_t kVocab = 1000;

void CheckError(const ApiError& error) {
  CHECK(error.http_status >= 400 && error.http_status < 500) << error.http_status;
  CHECK(!error.message.empty());
  CHECK(!error.code.empty());
  CHECK(!error.ToStatus().ok());
  boost::system::error_code invalid;
  boost::json::parse(error.Body("request-1"), invalid);
  CHECK(!invalid) << error.Body("request-1");
}

bool InRange(double value, double low, double high) { return value >= low && value <= high; }

void CheckIds(const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) CHECK(id >= 0 && id < kVocab) << id;
}

void CheckSampling(const SamplingParams& sampling) {
  CHECK(InRange(sampling.temperature, 0, 2)) << sampling.temperature;
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1) << sampling.top_p;
  CHECK(sampling.top_k >= 0) << sampling.top_k;
  CHECK(InRange(sampling.min_p, 0, 1)) << sampling.min_p;
  CHECK(InRange(sampling.repetition_penalty, 0.01, 100)) << sampling.repetition_penalty;
  CHECK(InRange(sampling.presence_penalty, -2, 2)) << sampling.presence_penalty;
  CHECK(InRange(sampling.frequency_penalty, -2, 2)) << sampling.frequency_penalty;
  CHECK(sampling.min_new_tokens >= 0) << sampling.min_new_tokens;
  CHECK_LE(sampling.stop_token_ids.size(), kMaxStopTokenIds);
  CheckIds(sampling.stop_token_ids);
  CHECK_LE(sampling.logit_bias.size(), kMaxLogitBias);
  for (const auto& [token, bias] : sampling.logit_bias) {
    CHECK(token >= 0 && token < kVocab) << token;
    CHECK(InRange(bias, -100, 100)) << bias;
  }
}

void CheckPrompts(const ApiRequest& request) {
  if (request.api == ApiKind::kChat) {
    CHECK(!request.messages.empty() && request.messages.size() <= kMaxMessages);
    for (const ChatMessage& message : request.messages) {
      CHECK(ValidateUtf8(message.content));
      CHECK(ValidateUtf8(message.reasoning_content));
    }
    return;
  }
  CHECK(!request.prompts.empty() && request.prompts.size() <= kMaxPrompts);
  for (const auto& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      CHECK(!text->empty() && ValidateUtf8(*text));
    } else {
      CHECK(!std::get<std::vector<TokenId>>(prompt).empty());
      CheckIds(std::get<std::vector<TokenId>>(prompt));
    }
  }
}

void CheckRequest(const ApiRequest& request) {
  CHECK_EQ(request.model, "needle");
  CheckSampling(request.sampling);
  CheckPrompts(request);
  CHECK(StopMatcher::Create(request.stop).ok()) << "stop strings that the matcher refuses";
  CHECK(request.max_tokens.value_or(1) >= (request.echo ? 0 : 1)) << *request.max_tokens;
  CHECK(request.top_logprobs >= 0 && request.top_logprobs <= kMaxTopLogprobs);
  CHECK(request.logprobs || request.top_logprobs == 0);
  if (request.sse_ping_interval_seconds) {
    CHECK(InRange(*request.sse_ping_interval_seconds, -1, 3600));
  }
}

void Run(FuzzInput input) {
  const uint8_t choice = input.Byte();
  const std::string_view body = input.Rest();
  SchemaRules rules{.model_names = {"needle"}, .vocab_size = kVocab, .strict = (choice & 2) != 0};
  const auto parse = [&] {
    return (choice & 1) != 0 ? ParseCompletionRequest(body, rules) : ParseChatRequest(body, rules);
  };
  const ApiOr<ApiRequest> request = parse();
  if (!request.ok()) return CheckError(request.error());
  CheckRequest(request.value());
  rules.strict = !rules.strict;
  const ApiOr<ApiRequest> again = parse();
  CHECK_EQ(again.ok(), request.value().unknown_fields.empty() || !rules.strict);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}

#include "router/request_builder.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "router/limits.h"
#include "router/openai_schema.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr int64_t kCompletionDefaultTokens = 16;

ApiOr<std::vector<TokenId>> PromptTokens(const ApiRequest& api, size_t index,
                                         const ModelInfo& model) {
  if (api.api == ApiKind::kChat) {
    absl::StatusOr<std::vector<TokenId>> rendered =
        model.chat_format->Render(api.messages, api.render);
    if (rendered.ok()) return *std::move(rendered);
    return InvalidValue("messages", std::string(rendered.status().message()));
  }
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&api.prompts[index])) return *ids;
  const std::string& text = std::get<std::string>(api.prompts[index]);
  if (!ValidateUtf8(text)) return InvalidValue("prompt", "prompt is not valid UTF-8");
  return model.tokenizer->EncodeText(text);
}

// The number of new tokens: as asked, or the default as far as it fits.
ApiOr<int64_t> NewTokens(const ApiRequest& api, int64_t prompt_tokens, const ModelInfo& model,
                         const BuildRules& rules) {
  const char* prompt = api.api == ApiKind::kChat ? "messages" : "prompt";
  if (prompt_tokens == 0) return InvalidValue(prompt, "the prompt is empty: it has no tokens");
  const int64_t context = model.max_context_tokens;
  if (prompt_tokens >= context) {
    return ContextLengthExceeded(
        prompt, absl::StrCat("the prompt has ", prompt_tokens, " tokens, the context holds ", context,
                             " including at least one new token; shorten the prompt"));
  }
  if (api.max_tokens.has_value()) {
    const int64_t room = context - prompt_tokens;
    if (*api.max_tokens <= room) return *api.max_tokens;
    return ContextLengthExceeded(
        "max_tokens", absl::StrCat("max_tokens is ", *api.max_tokens, " and the prompt has ",
                                   prompt_tokens, " tokens, the context holds ", context,
                                   "; ask for at most ", room));
  }
  const int64_t fallback = api.api == ApiKind::kCompletions ? kCompletionDefaultTokens
                                                            : rules.default_max_new_tokens;
  const int64_t limit = rules.largest_request_tokens > prompt_tokens
                            ? std::min(context, rules.largest_request_tokens)
                            : context;
  return std::min(fallback, limit - prompt_tokens);
}

uint64_t DrawSeed() {
  uint64_t seed = 0;
  FillRandom(&seed, sizeof(seed));
  return seed;
}

std::optional<ApiError> CheckSampling(const SamplingParams& sampling) {
  if (sampling.min_new_tokens > sampling.max_new_tokens) {
    return InvalidValue("min_tokens", absl::StrCat("min_tokens is ", sampling.min_new_tokens,
                                                   ", the limit of new tokens is ",
                                                   sampling.max_new_tokens));
  }
  const int64_t entries = int64_t{sampling.max_new_tokens} * (sampling.top_logprobs + 1);
  if (sampling.logprobs && entries > kMaxLogprobEntries) {
    return InvalidValue("top_logprobs", absl::StrCat("max_tokens times logprobs is ", entries,
                                                     ", limit is ", kMaxLogprobEntries));
  }
  return std::nullopt;
}

}  // namespace

ApiOr<std::vector<Request>> BuildRequests(const ApiRequest& api, const ModelInfo& model,
                                          const BuildRules& rules, TimePoint received_at) {
  const size_t num_prompts = api.api == ApiKind::kChat ? 1 : api.prompts.size();
  const uint64_t seed = api.seed.has_value() ? static_cast<uint64_t>(*api.seed) : DrawSeed();
  std::vector<Request> requests;
  for (size_t i = 0; i < num_prompts; ++i) {
    ApiOr<std::vector<TokenId>> prompt = PromptTokens(api, i, model);
    if (!prompt.ok()) return prompt.error();
    Request request;
    request.prompt = std::move(prompt).value();
    const ApiOr<int64_t> new_tokens =
        NewTokens(api, static_cast<int64_t>(request.prompt.size()), model, rules);
    if (!new_tokens.ok()) return new_tokens.error();
    request.sampling = api.sampling;
    request.sampling.seed = seed;
    request.sampling.max_new_tokens = static_cast<int32_t>(new_tokens.value());
    if (std::optional<ApiError> error = CheckSampling(request.sampling)) return *error;
    request.received_at = received_at;
    request.deadline = received_at + rules.request_timeout;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace lodestone

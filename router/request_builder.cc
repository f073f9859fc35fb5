#include "router/request_builder.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "router/limits.h"
#include "router/openai_schema.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr int64_t kCompletionDefaultTokens = 16;

// What the model's own files must have for this request.
std::optional<ApiError> CheckFormat(const ApiRequest& api, const ChatFormat& format) {
  const auto refuse = [](const char* param, const absl::Status& status) {
    return Unsupported(param, std::string(status.message()));
  };
  if (absl::Status status = format.tools_available(); api.calls_tools && !status.ok()) {
    return refuse("tools", status);
  }
  if (absl::Status status = format.response_formats_available();
      api.has_response_format && !status.ok()) {
    return refuse("response_format", status);
  }
  const absl::Status status = format.effort_available(api.render.effort);
  if (api.render.mode == ChatMode::kThinking && !status.ok()) {
    return refuse("reasoning_effort", status);
  }
  return std::nullopt;
}

ApiOr<std::vector<TokenId>> PromptTokens(const ApiRequest& api, size_t index,
                                         const ModelInfo& model) {
  if (api.api == ApiKind::kChat) {
    if (std::optional<ApiError> error = CheckFormat(api, *model.chat_format)) return *error;
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
        prompt, absl::StrCat("the prompt has ", prompt_tokens, " tokens, the context holds ",
                             context, " including at least one new token; shorten the prompt"));
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

// `entries`: the log-probabilities for the prompts before; on return with those for this one.
std::optional<ApiError> CheckSampling(const ApiRequest& api, int64_t prompt_tokens,
                                      int64_t new_tokens, int64_t& entries) {
  if (api.sampling.min_new_tokens > new_tokens) {
    return InvalidValue("min_tokens", absl::StrCat("min_tokens is ", api.sampling.min_new_tokens,
                                                   ", the limit of new tokens is ", new_tokens));
  }
  if (!api.logprobs) return std::nullopt;
  const int64_t num_tokens = (new_tokens + (api.echo ? prompt_tokens : 0)) * api.num_choices;
  entries += num_tokens * (api.top_logprobs + 1);
  if (entries <= kMaxLogprobEntries) return std::nullopt;
  const char* field = api.api == ApiKind::kCompletions ? "logprobs" : "top_logprobs";
  return InvalidValue(
      field,
      absl::StrCat("the answer may have ", entries, " log-probabilities, limit is ",
                   kMaxLogprobEntries, "; ask for fewer prompts, tokens, choices or alternatives"));
}

}  // namespace

uint64_t ChoiceSeed(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  // SplitMix64 (Steele, Lea, Flood 2014): seeds that are neighbours give unrelated ones.
  uint64_t z = seed + static_cast<uint64_t>(choice) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

namespace {

ApiOr<std::vector<Request>> Build(const ApiRequest& api, const ModelInfo& model,
                                  const BuildRules& rules, TimePoint received_at) {
  const size_t num_prompts = api.api == ApiKind::kChat ? 1 : api.prompts.size();
  const uint64_t seed = api.seed.has_value() ? static_cast<uint64_t>(*api.seed) : DrawSeed();
  std::vector<Request> requests;
  int64_t logprob_entries = 0;
  for (size_t i = 0; i < num_prompts; ++i) {
    ApiOr<std::vector<TokenId>> prompt = PromptTokens(api, i, model);
    if (!prompt.ok()) return prompt.error();
    Request request;
    request.prompt = std::move(prompt).value();
    const int64_t prompt_tokens = std::ssize(request.prompt);
    const ApiOr<int64_t> new_tokens = NewTokens(api, prompt_tokens, model, rules);
    if (!new_tokens.ok()) return new_tokens.error();
    const std::optional<ApiError> error =
        CheckSampling(api, prompt_tokens, new_tokens.value(), logprob_entries);
    if (error.has_value()) return *error;
    request.sampling = api.sampling;
    request.sampling.seed = seed;
    for (int choice = 1; choice < api.num_choices; ++choice) {
      request.fork_seeds.push_back(ChoiceSeed(seed, choice));
    }
    request.prompt_logprobs = api.echo && api.logprobs;
    request.scores_only = request.prompt_logprobs && new_tokens.value() == 0;
    request.sampling.max_new_tokens =
        request.scores_only ? 1 : static_cast<int32_t>(new_tokens.value());
    request.received_at = received_at;
    request.deadline = received_at + rules.request_timeout;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

ApiOr<std::vector<Request>> BuildRequests(const ApiRequest& api, const ModelInfo& model,
                                          const BuildRules& rules, TimePoint received_at) {
  return OrOutOfMemory([&] { return Build(api, model, rules, received_at); });
}

}  // namespace lodestone

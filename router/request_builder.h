#pragma once

#include <cstdint>
#include <vector>

#include "router/api_error.h"
#include "router/model_info.h"
#include "router/request.h"

namespace lodestone {

struct BuildRules {
  int64_t default_max_new_tokens = 4096;  // chat and gRPC; completions have OpenAI's 16
  int64_t largest_request_tokens = 0;     // of the registered workers; 0: not known
  std::chrono::milliseconds request_timeout{600'000};
};

// The seed of a choice of a request that has `seed`: the first one, 0, has that itself, so a
// request for one choice is the same as the first of several.
uint64_t ChoiceSeed(uint64_t seed, int choice);

// The prompts of a request in tokens, each with its complete sampling. Renders, tokenises and
// checks sizes: a prompt that is empty, or longer than the context with what it asks for, is a 400
// with both numbers. Takes time in proportion to the prompt; pure but for the seed it draws.
ApiOr<std::vector<Request>> BuildRequests(const ApiRequest& api, const ModelInfo& model,
                                          const BuildRules& rules, TimePoint received_at);

}  // namespace lodestone

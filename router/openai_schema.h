// The JSON bodies of the OpenAI routes to requests: pure functions, so that a fuzzer can call them.
// Stance per field: honoured, refused with a 400 that names it, or harmless and accepted. Nothing
// that would change the answer is accepted and ignored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "router/api_error.h"
#include "router/limits.h"
#include "router/request.h"

namespace lodestone {

struct SchemaRules {
  std::vector<std::string> model_names;  // served; others are a 404
  int32_t vocab_size = 0;                // token ids must be below
  double default_temperature = 1;
  double default_top_p = 1;
  bool strict = false;  // unknown fields are a 400
};

ApiOr<ApiRequest> ParseChatRequest(std::string_view body, const SchemaRules& rules);
ApiOr<ApiRequest> ParseCompletionRequest(std::string_view body, const SchemaRules& rules);

// Checks that every API applies to its sampling fields; `path` names the ids in messages.
std::optional<ApiError> CheckTokenIds(const std::vector<TokenId>& ids, int32_t vocab_size,
                                      std::string_view path);
ApiError ModelNotFound(std::string_view model, const std::vector<std::string>& served);

}  // namespace lodestone

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace lodestone {

// What the router knows of the model it serves: from tokenizer.json, config.json,
// generation_config.json and the folder encoding of its directory. Const once it serves.
struct ModelInfo {
  // NOT_FOUND or INVALID_ARGUMENT names the file. `served_name` empty: the directory's name.
  static absl::StatusOr<std::unique_ptr<ModelInfo>> Load(const std::string& directory,
                                                         const std::string& served_name);

  std::string directory_name;
  std::vector<std::string> names;  // the served name first
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatFormat> chat_format;
  std::string tokenizer_fingerprint;  // 16 hex digits
  int32_t vocab_size = 0;
  int64_t max_context_tokens = 0;
  int32_t eos_token_id = 0;
  double default_temperature = 1;
  double default_top_p = 1;
  int64_t created = 0;  // Unix time
};

}  // namespace lodestone

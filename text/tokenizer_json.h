#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// The checked content of a tokenizer.json, free of JSON.
struct TokenizerSpec {
  struct AddedToken {
    int32_t id;
    std::string content;  // UTF-8, matched literally
    bool special;         // the file's own flag: not part of the text a model writes
  };
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  std::vector<std::string> token_bytes;  // by id; empty where no token has that id
  std::vector<AddedToken> added;
  std::vector<Merge> merges;          // by rank, the first wins
  std::vector<std::string> patterns;  // split patterns in order
};

// Reads a Hugging Face tokenizer.json of the byte-level BPE kind. INVALID_ARGUMENT starts with
// `origin` and names the field: malformed JSON, a feature that is not supported (normalizers, other
// models, pre-tokenizers and split behaviours, dropout, unknown tokens, byte fallback, stripping
// added tokens), ids out of range or used twice, a merge of tokens that are not in the vocabulary,
// a merge that makes an added token (text could then become a control token), a missing byte.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json, std::string_view origin);

}  // namespace lodestone

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"

namespace lodestone {

// Byte-level BPE between text and token ids, read from a Hugging Face tokenizer.json.
//
// Invariants:
// 1. EncodeText never returns the id of an added token (special or not): text from a user cannot
//    become a control token. Only EncodeWithSpecials and SpecialId give such ids.
// 2. The bytes of the ids of EncodeText(text), joined, are `text`.
// Immutable after Load; every method is safe from any number of threads at once.
class Tokenizer {
 public:
  // NOT_FOUND if the file cannot be read, INVALID_ARGUMENT (ParseTokenizerJson) if it is bad.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);
  // The same from memory; errors start with `origin`.
  static absl::StatusOr<Tokenizer> FromJson(std::string_view json, std::string_view origin);

  // User content: all of it is ordinary text. REQUIRES: valid UTF-8 (ValidateUtf8); ill-formed
  // parts are encoded as U+FFFD.
  std::vector<int32_t> EncodeText(std::string_view utf8) const;
  // The same, appending to `ids`.
  void AppendText(std::string_view utf8, std::vector<int32_t>& ids) const;
  // Trusted templates and tests only: added tokens are matched literally first, leftmost, the
  // longest of several; the text between them is ordinary.
  std::vector<int32_t> EncodeWithSpecials(std::string_view utf8) const;

  // The bytes of a token; for an added token its content. Empty for ids that no token has,
  // including negative ones. Valid as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  // One more than the highest id.
  int32_t vocab_size() const { return static_cast<int32_t>(token_bytes_.size()); }

  // The id of the added token with exactly this content.
  std::optional<int32_t> SpecialId(std::string_view content) const;
  // Any added token: such an id never comes from text.
  bool IsAdded(int32_t id) const { return KindOf(id) != Kind::kOrdinary; }
  // An added token that the file marks as special; decoders leave it out by default.
  bool IsSpecial(int32_t id) const { return KindOf(id) == Kind::kSpecial; }

  // XXH64 over vocabulary, merges, added tokens and patterns: equal fingerprints mean equal ids for
  // every text. The file's spelling and unrelated fields do not count.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  enum class Kind : uint8_t { kOrdinary, kAdded, kSpecial };
  struct Merge {
    int32_t rank;
    int32_t result;
  };

  Tokenizer(TokenizerSpec spec, PreTokenizer pre_tokenizer);
  Kind KindOf(int32_t id) const {
    return id >= 0 && id < vocab_size() ? kinds_[static_cast<size_t>(id)] : Kind::kOrdinary;
  }
  const Merge* FindMerge(int32_t left, int32_t right) const;
  class WordEncoder;

  std::vector<std::string> token_bytes_;         // by id
  std::vector<Kind> kinds_;                      // by id
  std::array<int32_t, 256> byte_ids_{};          // the token of each single byte
  absl::flat_hash_map<uint64_t, Merge> merges_;  // key: left id << 32 | right id
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  std::array<std::vector<std::string>, 256> added_by_first_byte_;  // contents, longest first
  PreTokenizer pre_tokenizer_;
  uint64_t fingerprint_ = 0;
};

}  // namespace lodestone

// The tokenizer of the bundled model, for the fuzzers of text.
#pragma once

#include <string>

#include "base/logging.h"
#include "text/tokenizer.h"

namespace lodestone {

inline const Tokenizer& BundledTokenizer() {
  static const Tokenizer* const tokenizer = [] {
    absl::StatusOr<Tokenizer> loaded =
        Tokenizer::Load(std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny/tokenizer.json");
    CHECK(loaded.ok()) << loaded.status();
    return new Tokenizer(*std::move(loaded));
  }();
  return *tokenizer;
}

// The bytes of the ids, joined.
inline std::string JoinedBytes(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

// What EncodeText promises of any text.
inline void CheckEncoding(const Tokenizer& tokenizer, std::string_view text,
                          std::string_view as_utf8) {
  const std::vector<int32_t> ids = tokenizer.EncodeText(text);
  CHECK_LE(ids.size(), as_utf8.size());
  for (const int32_t id : ids) {
    CHECK(id >= 0 && id < tokenizer.vocab_size()) << id;
    CHECK(!tokenizer.IsAdded(id)) << "text became the control token " << id;
  }
  CHECK(JoinedBytes(tokenizer, ids) == as_utf8);
  CHECK(JoinedBytes(tokenizer, tokenizer.EncodeWithSpecials(as_utf8)) == as_utf8);
}

}  // namespace lodestone

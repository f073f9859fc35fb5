#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// Cuts text into the words that byte pairs never cross, by the `Split` patterns of a tokenizer.json
// with behaviour `Isolated`: each pattern in turn cuts every piece left by the one before it into
// its matches and the text between them. Immutable after Create; Split is safe from any thread.
class PreTokenizer {
 public:
  // Patterns are Perl-compatible, with Unicode character classes; `\s` means White_Space, as in the
  // library that wrote the file. INVALID_ARGUMENT names the pattern that does not compile.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<std::string>& patterns);

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Appends the words of `text` to `words`, as views into it, in order, none empty; joined they are
  // `text`. REQUIRES: valid UTF-8. A match that exceeds the work limit (a hostile pattern; the
  // limit is far above what the known patterns need) leaves the rest of its piece in one word.
  void Split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Pattern;
  struct Scratch;
  explicit PreTokenizer(std::vector<std::unique_ptr<Pattern>> patterns);

  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace lodestone

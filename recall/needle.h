#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

#include "recall/lexicon.h"
#include "text/tokenizer.h"

namespace lodestone {

// How a server counts the tokens of a prompt.
struct TokenCounter {
  const Tokenizer* tokenizer = nullptr;  // not owned; null: lengths are estimated from bytes
  double tokens_per_byte = 0.28;         // of the estimate; measured on English needle prompts
  int64_t tokens_before = 2;             // that the chat format puts before the content (BOS, User)
  int64_t tokens_after = 2;              // and after it (Assistant, </think>)

  int64_t Count(std::string_view text) const;
};

struct NeedleSpec {
  int64_t prompt_tokens = 0;  // wanted length, the chat format's tokens included
  bool exact = false;         // hit it to the token (a prompt with room for few lines only has
                              // pieces of lines); else at most one line shorter. Needs a tokenizer
  double depth = 0.5;         // place of the needle line: 0 the first line, 1 the last
  std::optional<int64_t> tokens_after_code{};  // instead of depth: how many prompt tokens follow
                                               // the last token of the code
  int distractors = 6;                         // needle lines about other names
  uint64_t seed = 0;                           // equal specs and lexicons give equal prompts
};

struct NeedlePrompt {
  std::string content;  // of one user message: lines, then the question
  std::string name;     // the one asked about; a pair that training never used as a needle
  std::string code;     // the random code to be recalled
  std::string answer;   // the reply of a model trained on this form
  // Measured with the tokenizer, or estimated without one:
  int64_t prompt_tokens = 0;
  int64_t needle_token_pos = 0;  // of the first token of the needle line; the prompt's first is 0
  int64_t tokens_after_code = 0;
};

// Makes prompts that hide one fact ("needle") among everyday lines and similar facts, and ask for
// it. Immutable; safe from any thread.
class NeedleGenerator {
 public:
  NeedleGenerator(Lexicon lexicon, TokenCounter counter);

  // INVALID_ARGUMENT: the length does not hold the needle, its distractors and the question; depth
  // outside [0, 1]; tokens_after_code less than the question needs or more than the prompt has;
  // more distractors than names; exact without a tokenizer.
  absl::StatusOr<NeedlePrompt> Make(const NeedleSpec& spec) const;

 private:
  class Draft;
  Lexicon lexicon_;
  TokenCounter counter_;
  std::vector<std::pair<size_t, size_t>> held_out_;
};

// True if `reply` holds `code` as a word of its own ("A-12-B" is not in "XA-12-B" or "A-12-BC").
bool HasCode(std::string_view reply, std::string_view code);

// 338, 943, 1,850, 4,509 and 10,498 tokens, needle at depth 0.05.
std::vector<NeedleSpec> NeedlePreset(uint64_t seed);

// Probes of what a sliding window of `window` tokens can and cannot see by itself.
struct WindowProbe {
  std::string place;  // "start", "far outside", "just outside", "inside"
  NeedleSpec spec;
};
std::vector<WindowProbe> WindowPreset(uint64_t seed, int64_t prompt_tokens = 5200,
                                      int64_t window = 128);

}  // namespace lodestone

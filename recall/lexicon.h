#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// The words needle prompts are made of.
struct Lexicon {
  std::vector<std::string> first;  // first and last names of the needles
  std::vector<std::string> last;
  std::vector<std::string> code;  // words of the codes, each only here
  std::vector<std::string> object;
  std::vector<std::string> adjective;
  std::vector<std::string> place;
  std::vector<std::string> verb;  // past participles
  std::vector<std::string> day;

  // Indices (first, last) of the name pairs that no training prompt asks about: those with
  // (7 first + 3 last) mod 10 == 0. Evaluation asks about these only.
  static bool IsHeldOut(size_t first_index, size_t last_index) {
    return (7 * first_index + 3 * last_index) % 10 == 0;
  }
  std::vector<std::pair<size_t, size_t>> HeldOutPairs() const;
};

// Everyday words, for models that bring none of their own.
const Lexicon& BuiltInLexicon();

// Reads the lexicon.json of a model: one array of words for each of FIRST, LAST, CODE, OBJ, ADJ,
// PLACE, VERB, DAY. INVALID_ARGUMENT names `origin` and the list that is missing, too short (names
// need 10, codes and the others 2), too long, or holds something else than a plain word.
absl::StatusOr<Lexicon> ParseLexicon(std::string_view json, std::string_view origin);

// `model_dir`/lexicon.json, or the built-in words if there is no such file.
absl::StatusOr<Lexicon> LexiconForModel(const std::string& model_dir);

}  // namespace lodestone

#include "recall/lexicon.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <absl/strings/str_cat.h>
#include <boost/json.hpp>

#include "base/status_macros.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr size_t kMaxWords = 10'000;
constexpr size_t kMaxWordBytes = 64;

struct ListField {
  std::string_view name;
  std::vector<std::string> Lexicon::*words;
  size_t min_words;
};

// Ten names of each kind make every residue of the held-out rule possible.
constexpr std::array<ListField, 8> kLists = {{{"FIRST", &Lexicon::first, 10},
                                              {"LAST", &Lexicon::last, 10},
                                              {"CODE", &Lexicon::code, 2},
                                              {"OBJ", &Lexicon::object, 2},
                                              {"ADJ", &Lexicon::adjective, 2},
                                              {"PLACE", &Lexicon::place, 2},
                                              {"VERB", &Lexicon::verb, 2},
                                              {"DAY", &Lexicon::day, 2}}};

bool IsPlainWord(std::string_view word) {
  if (word.empty() || word.size() > kMaxWordBytes) return false;
  for (const char c : word) {
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!letter && static_cast<unsigned char>(c) < 0x80) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::string>> ReadList(const json::object& root, const ListField& field,
                                                  const std::string& origin) {
  const std::string where = absl::StrCat(origin, ": ", std::string(field.name));
  const json::value* list = root.if_contains(field.name);
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(where, " must be an array of words"));
  }
  const json::array& entries = list->get_array();
  if (entries.size() < field.min_words || entries.size() > kMaxWords) {
    return absl::InvalidArgumentError(absl::StrCat(where, " has ", entries.size(),
                                                   " words, allowed are ", field.min_words, " to ",
                                                   kMaxWords));
  }
  std::vector<std::string> words;
  std::set<std::string> seen;
  for (const json::value& entry : entries) {
    const std::string word = entry.is_string() ? std::string(entry.get_string()) : std::string();
    if (!IsPlainWord(word) || !seen.insert(word).second) {
      return absl::InvalidArgumentError(absl::StrCat(where, "[", words.size(), "] ",
                                                     json::serialize(entry),
                                                     " is no plain word or occurs twice"));
    }
    words.push_back(word);
  }
  return words;
}

Lexicon MakeBuiltIn() {
  return {
      .first = {"Alice", "Ben",    "Chloe", "Daniel", "Emma",   "Frank", "Grace",
                "Henry", "Julia",  "Kevin", "Laura",  "Martin", "Nina",  "Oliver",
                "Paula", "Robert", "Sarah", "Thomas", "Ursula", "Victor"},
      .last = {"Anderson", "Baker",  "Carter",  "Davis", "Evans",  "Fisher", "Green",
               "Harris",   "Irving", "Jones",   "King",  "Lewis",  "Morris", "Nelson",
               "Owens",    "Price",  "Roberts", "Scott", "Turner", "Walker"},
      .code = {"ANCHOR", "BEACON", "CANYON", "DRAGON",  "EMBER",  "FOREST", "GARNET", "HARBOR",
               "ISLAND", "JAGUAR", "KERNEL", "LAGOON",  "METEOR", "NEBULA", "ORCHID", "PHOENIX",
               "QUIVER", "ROCKET", "SAFARI", "TURBINE", "UMBRA",  "VORTEX", "WILLOW", "ZENITH"},
      .object = {"pump", "lamp", "door", "clock", "table", "cable", "mirror", "ladder", "bottle",
                 "camera", "filter", "bicycle"},
      .adjective = {"red", "blue", "green", "old", "new", "small", "large", "heavy", "broken",
                    "clean"},
      .place = {"hall", "room", "tower", "garden", "office", "market", "station", "library"},
      .verb = {"checked", "moved", "painted", "repaired", "cleaned", "opened", "closed", "sold"},
      .day = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"},
  };
}

}  // namespace

std::vector<std::pair<size_t, size_t>> Lexicon::HeldOutPairs() const {
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t f = 0; f < first.size(); ++f) {
    for (size_t l = 0; l < last.size(); ++l) {
      if (IsHeldOut(f, l)) pairs.emplace_back(f, l);
    }
  }
  return pairs;
}

const Lexicon& BuiltInLexicon() {
  static const Lexicon* const lexicon = new Lexicon(MakeBuiltIn());
  return *lexicon;
}

absl::StatusOr<Lexicon> ParseLexicon(std::string_view text, std::string_view origin) {
  const std::string name(origin);
  json::error_code error;
  const json::value root = json::parse(text, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not valid JSON: ", error.message()));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": must be a JSON object"));
  }
  Lexicon lexicon;
  for (const ListField& field : kLists) {
    ASSIGN_OR_RETURN(lexicon.*field.words, ReadList(root.get_object(), field, name));
  }
  return lexicon;
}

absl::StatusOr<Lexicon> LexiconForModel(const std::string& model_dir) {
  const std::filesystem::path path = std::filesystem::path(model_dir) / "lexicon.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return BuiltInLexicon();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return ParseLexicon(text, path.string());
}

}  // namespace lodestone

#include "recall/needle.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>

#include "base/status_macros.h"
#include "recall/random.h"

namespace lodestone {
namespace {

constexpr int64_t kMaxPromptTokens = 16 << 20;
constexpr int kMaxDistractors = 100'000;
constexpr int64_t kMinTailTokens = 3;  // every longer rest can be made of a filler's last words
constexpr int kTailAttempts = 500;
constexpr int64_t kExactTokens = 48;  // every sum from here on can be made of whole lines
constexpr int kExactAttempts = 100;

using NamePair = std::pair<size_t, size_t>;

std::string FullName(const Lexicon& words, NamePair pair) {
  return absl::StrCat(words.first[pair.first], " ", words.last[pair.second]);
}

std::string RandomCode(const Lexicon& words, NeedleRandom& random) {
  std::string digits;
  for (int i = 0; i < 4; ++i) digits += static_cast<char>('0' + random.Below(10));
  const std::string& first = random.Pick(words.code);
  return absl::StrCat(first, "-", digits, "-", random.Pick(words.code));
}

std::string NeedleLine(const std::string& name, const std::string& code) {
  return absl::StrCat("The secret code for ", name, " is ", code, ".\n");
}

// One of the six everyday lines.
std::string FillerLine(const Lexicon& words, NeedleRandom& random) {
  const auto name = [&] {
    const std::string& first = random.Pick(words.first);
    return absl::StrCat(first, " ", random.Pick(words.last));
  };
  // Words are drawn in the order of the line: arguments of one call have no fixed order.
  std::string line;
  const auto add = [&](const auto&... parts) { (line.append(parts), ...); };
  switch (random.Below(6)) {
    case 0:
      add("Entry ", random.Number(3)), add(": the ", random.Pick(words.adjective));
      add(" ", random.Pick(words.object)), add(" in ", random.Pick(words.place));
      add(" ", random.Number(1)), add(" was ", random.Pick(words.verb));
      add(" by ", random.Pick(words.first)), add(" on ", random.Pick(words.day));
      break;
    case 1:
      add("On ", random.Pick(words.day)), add(" ", name()), add(" ", random.Pick(words.verb));
      add(" the ", random.Pick(words.object)), add(" near ", random.Pick(words.place));
      add(" ", random.Number(2));
      break;
    case 2:
      add("The ", random.Pick(words.object)), add(" from ", random.Pick(words.place));
      add(" ", random.Number(2)), add(" costs ", random.Number(3));
      add(" coins and looks ", random.Pick(words.adjective));
      break;
    case 3:
      add("Report ", random.Number(4)), add(": ", random.Pick(words.place));
      add(" ", random.Number(1)), add(" is ", random.Pick(words.adjective));
      add(" and the ", random.Pick(words.object)), add(" is ", random.Pick(words.adjective));
      break;
    case 4:
      add("The ", random.Pick(words.adjective)), add(" ", random.Pick(words.object));
      add(" for ", name()), add(" is in ", random.Pick(words.place)), add(" ", random.Number(2));
      break;
    default:
      add("The ", random.Pick(words.object)), add(" in ", random.Pick(words.place));
      add(" ", random.Number(2)), add(" was ", random.Pick(words.verb));
      add(" and ", random.Pick(words.verb)), add(" on ", random.Pick(words.day));
  }
  return line + ".\n";
}

// Number of tokens of `ids` that start before byte `offset` of their text.
int64_t TokensBefore(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t offset) {
  size_t bytes = 0;
  int64_t tokens = 0;
  for (; bytes < offset; ++tokens) bytes += tokenizer.TokenBytes(ids[tokens]).size();
  return tokens;
}

}  // namespace

int64_t TokenCounter::Count(std::string_view text) const {
  if (tokenizer != nullptr) return static_cast<int64_t>(tokenizer->EncodeText(text).size());
  return std::llround(static_cast<double>(text.size()) * tokens_per_byte);
}

NeedleGenerator::NeedleGenerator(Lexicon lexicon, TokenCounter counter)
    : lexicon_(std::move(lexicon)), counter_(counter), held_out_(lexicon_.HeldOutPairs()) {}

// One prompt while it is being made.
class NeedleGenerator::Draft {
 public:
  Draft(const NeedleGenerator& generator, const NeedleSpec& spec)
      : words_(generator.lexicon_),
        counter_(generator.counter_),
        held_out_(generator.held_out_),
        spec_(spec),
        random_(spec.seed) {}

  absl::StatusOr<NeedlePrompt> Run() {
    RETURN_IF_ERROR(Check());
    ChooseNeedles();
    const int64_t fixed = counter_.tokens_before + counter_.tokens_after +
                          counter_.Count(needle_line_) + counter_.Count(question_) +
                          CountAll(distractors_);
    if (fixed > spec_.prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("a needle prompt of ", spec_.prompt_tokens,
                                                     " tokens with ", spec_.distractors,
                                                     " distractors needs at least ", fixed));
    }
    const int64_t filler = spec_.prompt_tokens - fixed;
    RETURN_IF_ERROR(spec_.tokens_after_code.has_value() ? PlaceByTokens(filler)
                                                        : PlaceByDepth(filler));
    return Finish();
  }

 private:
  absl::Status Check() const {
    if (spec_.prompt_tokens < 1 || spec_.prompt_tokens > kMaxPromptTokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a prompt of ", spec_.prompt_tokens, " tokens, allowed are 1 to ", kMaxPromptTokens));
    }
    if (!(spec_.depth >= 0.0 && spec_.depth <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat("depth ", spec_.depth, " is not in [0, 1]"));
    }
    const auto names =
        static_cast<int64_t>(words_.first.size() * words_.last.size() - held_out_.size());
    const int64_t most = std::min<int64_t>(names, kMaxDistractors);
    if (spec_.distractors < 0 || spec_.distractors > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec_.distractors, " distractors, allowed are 0 to ", most));
    }
    if (spec_.exact && counter_.tokenizer == nullptr) {
      return absl::InvalidArgumentError("an exact prompt length needs a tokenizer");
    }
    return absl::OkStatus();
  }

  void ChooseNeedles() {
    const NamePair asked = held_out_[random_.Below(held_out_.size())];
    prompt_.name = FullName(words_, asked);
    prompt_.code = RandomCode(words_, random_);
    prompt_.answer = absl::StrCat("The secret code is ", prompt_.code, ".");
    needle_line_ = NeedleLine(prompt_.name, prompt_.code);
    question_ = absl::StrCat("What is the secret code for ", prompt_.name, "?");
    std::set<NamePair> used;
    while (static_cast<int>(distractors_.size()) < spec_.distractors) {
      const size_t first = random_.Below(words_.first.size());
      const NamePair pair(first, random_.Below(words_.last.size()));
      if (Lexicon::IsHeldOut(pair.first, pair.second) || !used.insert(pair).second) continue;
      std::string code = RandomCode(words_, random_);
      while (code == prompt_.code) code = RandomCode(words_, random_);
      distractors_.push_back(NeedleLine(FullName(words_, pair), code));
    }
  }

  int64_t CountAll(const std::vector<std::string>& lines) const {
    int64_t tokens = 0;
    for (const std::string& line : lines) tokens += counter_.Count(line);
    return tokens;
  }

  // Filler of `budget` tokens: whole lines, and `pieces` of lines where those alone cannot be
  // exact.
  struct Filler {
    std::vector<std::string> lines;
    std::vector<std::string> pieces;
  };

  // Exactly `budget` tokens, or less than one line short of it. Models know whole lines only, and a
  // piece after the needle line has cost its code: pieces are for budgets of a line or three.
  absl::StatusOr<Filler> Fill(int64_t budget, bool exact) {
    Filler filler;
    AddLines(exact ? budget - kExactTokens : budget, budget, filler.lines);
    if (!exact || AddLinesOfExactly(budget, filler.lines)) return filler;
    AddLines(budget - kMinTailTokens, budget, filler.lines);
    RETURN_IF_ERROR(AddPieces(budget, filler.pieces));
    return filler;
  }

  // Adds lines of at most `most` tokens together, and takes them off `budget`.
  void AddLines(int64_t most, int64_t& budget, std::vector<std::string>& lines) {
    for (;;) {
      std::string line = FillerLine(words_, random_);
      const int64_t tokens = counter_.Count(line);
      if (tokens > most) return;
      most -= tokens;
      budget -= tokens;
      lines.push_back(std::move(line));
    }
  }

  // False, and nothing is added, if chance finds no lines of this sum.
  bool AddLinesOfExactly(int64_t budget, std::vector<std::string>& lines) {
    for (int attempt = 0; attempt < kExactAttempts; ++attempt) {
      std::vector<std::string> tried;
      int64_t rest = budget;
      while (rest > 0) {
        tried.push_back(FillerLine(words_, random_));
        rest -= counter_.Count(tried.back());
      }
      if (rest < 0) continue;
      lines.insert(lines.end(), tried.begin(), tried.end());
      return true;
    }
    return false;
  }

  // The last words of lines, of exactly `budget` tokens (about one line) together.
  absl::Status AddPieces(int64_t budget, std::vector<std::string>& pieces) {
    int64_t rest = budget;
    for (int attempt = 0; attempt < kTailAttempts && rest > 0; ++attempt) {
      const std::string line = FillerLine(words_, random_);
      for (size_t start = 0; start < line.size() && rest > 0;) {
        std::string tail = line.substr(start);
        const int64_t tokens = counter_.Count(tail);
        // A shorter piece is taken only when no whole one turned up for a while.
        const bool piece = attempt % 50 == 49 && tokens + kMinTailTokens <= rest;
        if (tokens == rest || piece) {
          rest -= tokens;
          pieces.push_back(std::move(tail));
          break;
        }
        const size_t space = line.find(' ', start);
        start = space == std::string::npos ? line.size() : space + 1;
      }
    }
    if (rest == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("no line of exactly ", rest,
                                                   " tokens can be made to reach ",
                                                   spec_.prompt_tokens, " tokens"));
  }

  void Scatter(const std::vector<std::string>& extra, std::vector<std::string>& lines) {
    for (const std::string& line : extra) {
      lines.insert(lines.begin() + static_cast<int64_t>(random_.Below(lines.size() + 1)), line);
    }
  }

  absl::Status PlaceByDepth(int64_t filler) {
    ASSIGN_OR_RETURN(Filler made, Fill(filler, spec_.exact));
    std::vector<std::string>& lines = made.lines;
    Scatter(distractors_, lines);
    const auto index = std::llround(spec_.depth * static_cast<double>(lines.size()));
    before_.assign(lines.begin(), lines.begin() + index);
    after_.assign(lines.begin() + index, lines.end());
    // In front of all lines, but never before a needle that is to be the first.
    if (before_.empty()) {
      after_.insert(after_.end(), made.pieces.begin(), made.pieces.end());
    } else {
      before_.insert(before_.begin(), made.pieces.begin(), made.pieces.end());
    }
    return absl::OkStatus();
  }

  // The lines after the needle are filled to the token; distractors go where they fit, as evenly
  // as chance would have it.
  absl::Status PlaceByTokens(int64_t filler) {
    const int64_t least = counter_.Count(".\n") + counter_.Count(question_) + counter_.tokens_after;
    int64_t room_after = *spec_.tokens_after_code - least;
    int64_t room_before = filler + CountAll(distractors_) - room_after;
    if (room_after < 0 || room_before < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(*spec_.tokens_after_code, " tokens after the code, allowed are ", least,
                       " to ", least + filler + CountAll(distractors_)));
    }
    std::vector<std::string> extra_before;
    std::vector<std::string> extra_after;
    for (std::string& line : distractors_) {
      const int64_t tokens = counter_.Count(line);
      const bool goes_after =
          static_cast<int64_t>(random_.Below(room_before + room_after + 1)) < room_after;
      const bool fits_after = room_after >= tokens + kMinTailTokens || room_after == tokens;
      const bool after = fits_after && (goes_after || room_before < tokens);
      if (!after && room_before < tokens) {
        return absl::InvalidArgumentError(
            absl::StrCat(spec_.distractors, " distractors do not fit around a needle with ",
                         *spec_.tokens_after_code, " tokens after its code"));
      }
      (after ? room_after : room_before) -= tokens;
      (after ? extra_after : extra_before).push_back(std::move(line));
    }
    const bool counted = counter_.tokenizer != nullptr;
    ASSIGN_OR_RETURN(const Filler after, Fill(room_after, counted));
    ASSIGN_OR_RETURN(const Filler before, Fill(room_before, spec_.exact));
    after_ = after.lines;
    before_ = before.lines;
    Scatter(extra_after, after_);
    Scatter(extra_before, before_);
    after_.insert(after_.end(), after.pieces.begin(), after.pieces.end());
    before_.insert(before_.begin(), before.pieces.begin(), before.pieces.end());
    return absl::OkStatus();
  }

  absl::StatusOr<NeedlePrompt> Finish() {
    for (const std::string& line : before_) prompt_.content += line;
    const size_t needle = prompt_.content.size();
    prompt_.content += needle_line_;
    const size_t code_end = prompt_.content.size() - std::string_view(".\n").size();
    for (const std::string& line : after_) prompt_.content += line;
    prompt_.content += question_;
    Measure(needle, code_end);
    if (spec_.exact && prompt_.prompt_tokens != spec_.prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt_.prompt_tokens,
                                                     " tokens instead of ", spec_.prompt_tokens,
                                                     ": this tokenizer joins lines"));
    }
    return std::move(prompt_);
  }

  void Measure(size_t needle, size_t code_end) {
    int64_t total = 0;
    int64_t before_needle = 0;
    int64_t before_code_end = 0;
    if (counter_.tokenizer != nullptr) {
      const std::vector<int32_t> ids = counter_.tokenizer->EncodeText(prompt_.content);
      total = static_cast<int64_t>(ids.size());
      before_needle = TokensBefore(*counter_.tokenizer, ids, needle);
      before_code_end = TokensBefore(*counter_.tokenizer, ids, code_end);
    } else {
      const std::string_view content = prompt_.content;
      total = counter_.Count(content);
      before_needle = counter_.Count(content.substr(0, needle));
      before_code_end = counter_.Count(content.substr(0, code_end));
    }
    prompt_.prompt_tokens = counter_.tokens_before + total + counter_.tokens_after;
    prompt_.needle_token_pos = counter_.tokens_before + before_needle;
    prompt_.tokens_after_code = total - before_code_end + counter_.tokens_after;
  }

  const Lexicon& words_;
  const TokenCounter& counter_;
  const std::vector<NamePair>& held_out_;
  const NeedleSpec& spec_;
  NeedleRandom random_;
  NeedlePrompt prompt_;
  std::string needle_line_;
  std::string question_;
  std::vector<std::string> distractors_;
  std::vector<std::string> before_;
  std::vector<std::string> after_;
};

absl::StatusOr<NeedlePrompt> NeedleGenerator::Make(const NeedleSpec& spec) const {
  return Draft(*this, spec).Run();
}

bool HasCode(std::string_view reply, std::string_view code) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-';
  };
  if (code.empty()) return false;
  for (size_t pos = reply.find(code); pos != std::string_view::npos;
       pos = reply.find(code, pos + 1)) {
    const size_t end = pos + code.size();
    const bool starts = pos == 0 || !is_word(reply[pos - 1]);
    if (starts && (end == reply.size() || !is_word(reply[end]))) return true;
  }
  return false;
}

std::vector<NeedleSpec> NeedlePreset(uint64_t seed) {
  std::vector<NeedleSpec> specs;
  for (const int64_t tokens : {338, 943, 1850, 4509, 10498}) {
    specs.push_back({.prompt_tokens = tokens,
                     .exact = true,
                     .depth = 0.05,
                     .tokens_after_code = std::nullopt,
                     .seed = seed + specs.size()});
  }
  return specs;
}

std::vector<WindowProbe> WindowPreset(uint64_t seed, int64_t prompt_tokens, int64_t window) {
  const auto spec = [&](double depth, std::optional<int64_t> tokens_after_code) {
    return NeedleSpec{.prompt_tokens = prompt_tokens,
                      .exact = true,
                      .depth = depth,
                      .tokens_after_code = tokens_after_code,
                      .seed = seed};
  };
  // The last prompt token sees itself and the window - 1 tokens before it. "Just outside" is one
  // group of four tokens away from it; "inside" stays there while the answer is written.
  return {{"start", spec(0.0, std::nullopt)},
          {"far outside", spec(0.5, std::nullopt)},
          {"just outside", spec(1.0, window + 4)},
          {"inside", spec(1.0, window / 2)}};
}

}  // namespace lodestone

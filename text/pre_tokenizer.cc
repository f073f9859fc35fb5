#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>

namespace lodestone {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000;  // backtracking steps of one match
constexpr size_t kJitStackBytes = 1 << 20;
constexpr size_t kMaxPatternBytes = 64 * 1024;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

// PCRE2's `\s` also takes U+180E, which is no White_Space since Unicode 6.3.
std::string WithUnicodeSpace(std::string_view pattern) {
  std::string out;
  for (size_t pos = 0; pos < pattern.size(); ++pos) {
    if (pattern[pos] != '\\' || pos + 1 == pattern.size()) {
      out.push_back(pattern[pos]);
      continue;
    }
    const char escaped = pattern[++pos];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else {
      out.push_back('\\');
      out.push_back(escaped);
    }
  }
  return out;
}

std::string ErrorText(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, CodeFree> code;
};

// What one Split call needs and no other thread may share.
struct PreTokenizer::Scratch {
  std::unique_ptr<pcre2_match_data, MatchDataFree> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, MatchContextFree> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, JitStackFree> stack{
      pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)};

  Scratch() {
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // The first match of `pattern` in text[from..] that is not empty, as [begin, end).
  std::optional<std::pair<size_t, size_t>> Find(const Pattern& pattern, std::string_view text,
                                                size_t from) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc = pcre2_match(pattern.code.get(), subject, text.size(), from, options, data.get(),
                         context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(pattern.code.get(), subject, text.size(), from, options | PCRE2_NO_JIT,
                       data.get(), context.get());
    }
    if (rc < 0) return std::nullopt;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    if (bounds[0] < from || bounds[1] <= bounds[0]) return std::nullopt;  // \K can do this
    return std::pair(bounds[0], bounds[1]);
  }
};

PreTokenizer::PreTokenizer(std::vector<std::unique_ptr<Pattern>> patterns)
    : patterns_(std::move(patterns)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<std::string>& patterns) {
  std::vector<std::unique_ptr<Pattern>> compiled;
  for (const std::string& source : patterns) {
    if (source.empty() || source.size() > kMaxPatternBytes) {
      return absl::InvalidArgumentError(absl::StrCat("split pattern ", compiled.size(), " has ",
                                                     source.size(), " bytes, allowed are 1 to ",
                                                     kMaxPatternBytes));
    }
    const std::string text = WithUnicodeSpace(source);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto pattern = std::make_unique<Pattern>();
    pattern->code.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
                      &error, &offset, nullptr));
    if (pattern->code == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("split pattern ", compiled.size(),
                                                     " does not compile: ", ErrorText(error),
                                                     " at offset ", offset));
    }
    // Where the JIT is not available the interpreter gives the same matches, slower.
    pcre2_jit_compile(pattern->code.get(), PCRE2_JIT_COMPLETE);
    compiled.push_back(std::move(pattern));
  }
  return PreTokenizer(std::move(compiled));
}

void PreTokenizer::Split(std::string_view text, std::vector<std::string_view>& words) const {
  if (text.empty()) return;
  Scratch scratch;
  std::vector<std::string_view> pieces = {text};
  std::vector<std::string_view> next;
  for (const std::unique_ptr<Pattern>& pattern : patterns_) {
    next.clear();
    for (const std::string_view piece : pieces) {
      size_t done = 0;
      while (done < piece.size()) {
        const auto match = scratch.Find(*pattern, piece, done);
        if (!match.has_value()) break;
        const auto [begin, end] = *match;
        if (begin > done) next.push_back(piece.substr(done, begin - done));
        next.push_back(piece.substr(begin, end - begin));
        done = end;
      }
      if (done < piece.size()) next.push_back(piece.substr(done));
    }
    std::swap(pieces, next);
  }
  words.insert(words.end(), pieces.begin(), pieces.end());
}

}  // namespace lodestone

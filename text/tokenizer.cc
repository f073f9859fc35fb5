#include "text/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <queue>
#include <utility>

#include <absl/strings/str_cat.h>
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr int64_t kMaxFileBytes = 256 << 20;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Feeds lengths and bytes, so that no two contents have the same feed.
class Fingerprint {
 public:
  Fingerprint() : state_(XXH64_createState()) { XXH64_reset(state_, 0); }
  ~Fingerprint() { XXH64_freeState(state_); }
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void Add(uint64_t value) {
    unsigned char bytes[8];  // little endian on every machine
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
    XXH64_update(state_, bytes, sizeof(bytes));
  }
  void Add(std::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    XXH64_update(state_, text.data(), text.size());
  }
  uint64_t Digest() const { return XXH64_digest(state_); }

 private:
  XXH64_state_t* state_;
};

uint64_t FingerprintOf(const TokenizerSpec& spec) {
  Fingerprint print;
  print.Add(spec.token_bytes.size());
  for (const std::string& bytes : spec.token_bytes) print.Add(bytes);
  print.Add(spec.merges.size());
  for (const TokenizerSpec::Merge& merge : spec.merges) {
    print.Add(PairKey(merge.left, merge.right));
    print.Add(static_cast<uint64_t>(merge.result));
  }
  std::vector<TokenizerSpec::AddedToken> added = spec.added;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  print.Add(added.size());
  for (const TokenizerSpec::AddedToken& token : added) {
    print.Add(static_cast<uint64_t>(token.id) << 1 | (token.special ? 1 : 0));
  }
  for (const std::string& pattern : spec.patterns) print.Add(pattern);
  return print.Digest();
}

}  // namespace

// Merges the symbols of one word, the lowest rank first and leftmost among equals, over a linked
// list with a heap of candidate pairs: n log n for n bytes. Reused from word to word.
class Tokenizer::WordEncoder {
 public:
  explicit WordEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Append(std::string_view word, std::vector<int32_t>& ids) {
    symbols_.clear();
    const auto size = static_cast<int32_t>(word.size());
    for (int32_t i = 0; i < size; ++i) {
      const int32_t id = tokenizer_.byte_ids_[static_cast<unsigned char>(word[i])];
      symbols_.push_back({.id = id, .previous = i - 1, .next = i + 1 < size ? i + 1 : -1});
    }
    for (int32_t i = 0; i + 1 < size; ++i) Offer(i);
    while (!candidates_.empty()) {
      const Candidate best = candidates_.top();
      candidates_.pop();
      if (IsCurrent(best)) Apply(best);
    }
    for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids.push_back(symbols_[i].id);
  }

 private:
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the left symbol
    int32_t left_id;
    int32_t right_id;
    int32_t result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void Offer(int32_t left) {
    const int32_t right = symbols_[left].next;
    if (right < 0) return;
    const Merge* merge = tokenizer_.FindMerge(symbols_[left].id, symbols_[right].id);
    if (merge == nullptr) return;
    candidates_.push({.rank = merge->rank,
                      .left = left,
                      .left_id = symbols_[left].id,
                      .right_id = symbols_[right].id,
                      .result = merge->result});
  }

  // False if either symbol has changed since the candidate was offered.
  bool IsCurrent(const Candidate& candidate) const {
    const Symbol& left = symbols_[candidate.left];
    return left.id == candidate.left_id && left.next >= 0 &&
           symbols_[left.next].id == candidate.right_id;
  }

  void Apply(const Candidate& candidate) {
    Symbol& left = symbols_[candidate.left];
    Symbol& right = symbols_[left.next];
    left.id = candidate.result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols_[left.next].previous = candidate.left;
    if (left.previous >= 0) Offer(left.previous);
    Offer(candidate.left);
  }

  const Tokenizer& tokenizer_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
};

Tokenizer::Tokenizer(TokenizerSpec spec, PreTokenizer pre_tokenizer)
    : pre_tokenizer_(std::move(pre_tokenizer)), fingerprint_(FingerprintOf(spec)) {
  token_bytes_ = std::move(spec.token_bytes);
  kinds_.assign(token_bytes_.size(), Kind::kOrdinary);
  for (TokenizerSpec::AddedToken& token : spec.added) {
    kinds_[token.id] = token.special ? Kind::kSpecial : Kind::kAdded;
    added_by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(token.content);
    added_ids_.emplace(std::move(token.content), token.id);
  }
  for (std::vector<std::string>& contents : added_by_first_byte_) {
    std::sort(contents.begin(), contents.end(),
              [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  }
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (token_bytes_[id].size() != 1 || IsAdded(id)) continue;
    byte_ids_[static_cast<unsigned char>(token_bytes_[id][0])] = id;
  }
  merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const TokenizerSpec::Merge& merge = spec.merges[rank];
    merges_.try_emplace(PairKey(merge.left, merge.right),
                        Merge{.rank = static_cast<int32_t>(rank), .result = merge.result});
  }
}

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  if (const std::filesystem::file_status status = std::filesystem::status(path, error);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " bytes, limit is ", kMaxFileBytes));
  }
  return CatchOutOfMemory("for a tokenizer", [&]() -> absl::StatusOr<Tokenizer> {
    std::string text(static_cast<size_t>(size), '\0');
    file.seekg(0);
    if (!file.read(text.data(), size)) {
      return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    }
    return FromJson(text, path);
  });
}

absl::StatusOr<Tokenizer> Tokenizer::FromJson(std::string_view json, std::string_view origin) {
  ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json, origin));
  absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(spec.patterns);
  if (!pre_tokenizer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(origin), ": pre_tokenizer: ",
                     std::string(pre_tokenizer.status().message().data(),
                                 pre_tokenizer.status().message().size())));
  }
  return Tokenizer(std::move(spec), *std::move(pre_tokenizer));
}

const Tokenizer::Merge* Tokenizer::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::vector<int32_t> Tokenizer::EncodeText(std::string_view utf8) const {
  std::vector<int32_t> ids;
  AppendText(utf8, ids);
  return ids;
}

void Tokenizer::AppendText(std::string_view utf8, std::vector<int32_t>& ids) const {
  std::string repaired;
  if (!ValidateUtf8(utf8)) {
    repaired = ReplaceInvalidUtf8(utf8);
    utf8 = repaired;
  }
  std::vector<std::string_view> words;
  pre_tokenizer_.Split(utf8, words);
  WordEncoder encoder(*this);
  for (const std::string_view word : words) encoder.Append(word, ids);
}

std::vector<int32_t> Tokenizer::EncodeWithSpecials(std::string_view utf8) const {
  std::vector<int32_t> ids;
  size_t done = 0;
  for (size_t pos = 0; pos < utf8.size();) {
    const std::vector<std::string>& contents =
        added_by_first_byte_[static_cast<unsigned char>(utf8[pos])];
    const auto match = std::find_if(
        contents.begin(), contents.end(),
        [&](const std::string& content) { return utf8.substr(pos).starts_with(content); });
    if (match == contents.end()) {
      ++pos;
      continue;
    }
    AppendText(utf8.substr(done, pos - done), ids);
    ids.push_back(added_ids_.at(*match));
    pos += match->size();
    done = pos;
  }
  AppendText(utf8.substr(done), ids);
  return ids;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return token_bytes_[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::SpecialId(std::string_view content) const {
  const auto it = added_ids_.find(std::string(content));
  if (it == added_ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace lodestone

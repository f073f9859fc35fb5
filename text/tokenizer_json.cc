#include "text/tokenizer_json.h"

#include <set>
#include <utility>

#include <boost/json.hpp>

#include <absl/strings/str_cat.h>
#include "base/status_macros.h"
#include "text/byte_level.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxTokens = 1 << 21;
constexpr size_t kMaxSplits = 64;

std::string Str(std::string_view text) { return std::string(text); }

// Fields of one JSON object; errors name the file and the path of the field.
class Fields {
 public:
  Fields(const json::object& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  absl::Status Error(std::string_view field, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, Str(field), ": ", Str(what)));
  }

  // The field, or nullptr if it is absent or null.
  const json::value* Find(std::string_view field) const {
    const json::value* value = object_.if_contains(field);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  absl::StatusOr<Fields> Object(std::string_view field) const {
    const json::value* value = Find(field);
    if (value == nullptr || !value->is_object()) return Error(field, "must be an object");
    return Fields(value->get_object(), absl::StrCat(where_, Str(field), "."));
  }

  absl::StatusOr<const json::array*> Array(std::string_view field) const {
    const json::value* value = Find(field);
    if (value == nullptr || !value->is_array()) return Error(field, "must be an array");
    return &value->get_array();
  }

  absl::StatusOr<std::string> String(std::string_view field) const {
    const json::value* value = Find(field);
    if (value == nullptr || !value->is_string()) return Error(field, "must be a string");
    return Str(value->get_string());
  }

  // OK if the field is absent, null or false.
  absl::Status MustBeOff(std::string_view field) const {
    const json::value* value = Find(field);
    if (value == nullptr || (value->is_bool() && !value->get_bool())) return absl::OkStatus();
    return Error(field, absl::StrCat(json::serialize(*value), " is not supported"));
  }

  absl::Status MustBe(std::string_view field, std::string_view wanted) const {
    ASSIGN_OR_RETURN(const std::string value, String(field));
    if (value == wanted) return absl::OkStatus();
    return Error(field,
                 absl::StrCat("\"", value, "\" is not supported, only \"", Str(wanted), "\" is"));
  }

 private:
  const json::object& object_;
  std::string where_;
};

absl::StatusOr<int32_t> TokenId(const json::value* value, const std::string& where) {
  const int64_t id = value != nullptr && value->is_int64() ? value->get_int64() : -1;
  if (id < 0 || id >= kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": id ", value == nullptr ? "missing" : json::serialize(*value),
                     " is not an integer in [0, ", kMaxTokens, ")"));
  }
  return static_cast<int32_t>(id);
}

class Parser {
 public:
  explicit Parser(const Fields& root) : root_(root) {}

  absl::StatusOr<TokenizerSpec> Run() {
    RETURN_IF_ERROR(CheckNormalizer());
    RETURN_IF_ERROR(ReadPreTokenizer());
    RETURN_IF_ERROR(CheckDecoder());
    ASSIGN_OR_RETURN(const Fields model, root_.Object("model"));
    RETURN_IF_ERROR(CheckModel(model));
    RETURN_IF_ERROR(ReadAddedTokens());
    RETURN_IF_ERROR(ReadVocabulary(model));
    RETURN_IF_ERROR(PlaceAddedTokens());
    RETURN_IF_ERROR(ReadMerges(model));
    return std::move(spec_);
  }

 private:
  absl::Status CheckNormalizer() const {
    if (root_.Find("normalizer") == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Fields normalizer, root_.Object("normalizer"));
    RETURN_IF_ERROR(normalizer.MustBe("type", "Sequence"));
    ASSIGN_OR_RETURN(const json::array* steps, normalizer.Array("normalizers"));
    if (steps->empty()) return absl::OkStatus();
    return normalizer.Error("normalizers",
                            absl::StrCat(steps->size(), " normalizers, none is supported"));
  }

  absl::Status CheckDecoder() const {
    if (root_.Find("decoder") == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Fields decoder, root_.Object("decoder"));
    return decoder.MustBe("type", "ByteLevel");
  }

  absl::Status CheckByteLevel(const Fields& step) const {
    RETURN_IF_ERROR(step.MustBeOff("add_prefix_space"));
    const json::value* use_regex = step.Find("use_regex");
    if (use_regex != nullptr && use_regex->is_bool() && !use_regex->get_bool()) {
      return absl::OkStatus();
    }
    return step.Error("use_regex", "must be false, the built-in pattern is not supported");
  }

  absl::Status ReadSplit(const Fields& step) {
    RETURN_IF_ERROR(step.MustBe("behavior", "Isolated"));
    RETURN_IF_ERROR(step.MustBeOff("invert"));
    ASSIGN_OR_RETURN(const Fields pattern, step.Object("pattern"));
    if (pattern.Find("String") != nullptr) {
      return pattern.Error("String", "is not supported, only Regex is");
    }
    ASSIGN_OR_RETURN(std::string regex, pattern.String("Regex"));
    spec_.patterns.push_back(std::move(regex));
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer() {
    ASSIGN_OR_RETURN(const Fields top, root_.Object("pre_tokenizer"));
    ASSIGN_OR_RETURN(const std::string type, top.String("type"));
    if (type == "ByteLevel") return CheckByteLevel(top);
    RETURN_IF_ERROR(top.MustBe("type", "Sequence"));
    ASSIGN_OR_RETURN(const json::array* steps, top.Array("pretokenizers"));
    if (steps->empty() || steps->size() > kMaxSplits) {
      return top.Error("pretokenizers",
                       absl::StrCat(steps->size(), " steps, allowed are 1 to ", kMaxSplits));
    }
    for (size_t i = 0; i < steps->size(); ++i) {
      RETURN_IF_ERROR(ReadPreTokenizerStep((*steps)[i], i + 1 == steps->size(),
                                           absl::StrCat(top.where(), "pretokenizers[", i, "]")));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizerStep(const json::value& value, bool last, const std::string& where) {
    if (!value.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": must be an object"));
    }
    const Fields step(value.get_object(), where + ".");
    ASSIGN_OR_RETURN(const std::string type, step.String("type"));
    if (type == "ByteLevel" && last) return CheckByteLevel(step);
    if (type == "ByteLevel") return step.Error("type", "ByteLevel must be the last step");
    if (type == "Split" && !last) return ReadSplit(step);
    if (type == "Split") return step.Error("type", "the last step must be ByteLevel");
    return step.Error("type", absl::StrCat("\"", type, "\" is not supported"));
  }

  absl::Status CheckModel(const Fields& model) const {
    RETURN_IF_ERROR(model.MustBe("type", "BPE"));
    for (const std::string_view field :
         {"dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"}) {
      RETURN_IF_ERROR(model.MustBeOff(field));
    }
    for (const std::string_view field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.Find(field) == nullptr) continue;
      ASSIGN_OR_RETURN(const std::string value, model.String(field));
      if (!value.empty()) {
        return model.Error(field, absl::StrCat("\"", value, "\" is not supported"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens() {
    if (root_.Find("added_tokens") == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const json::array* tokens, root_.Array("added_tokens"));
    std::set<std::string> contents;
    for (size_t i = 0; i < tokens->size(); ++i) {
      const std::string where = absl::StrCat(root_.where(), "added_tokens[", i, "]");
      if (!(*tokens)[i].is_object()) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": must be an object"));
      }
      const Fields token((*tokens)[i].get_object(), where + ".");
      for (const std::string_view field : {"single_word", "lstrip", "rstrip"}) {
        RETURN_IF_ERROR(token.MustBeOff(field));
      }
      ASSIGN_OR_RETURN(std::string content, token.String("content"));
      ASSIGN_OR_RETURN(const int32_t id, TokenId(token.Find("id"), where));
      if (content.empty()) return token.Error("content", "is empty");
      if (!contents.insert(content).second) {
        return token.Error("content", absl::StrCat("\"", content, "\" occurs twice"));
      }
      const bool special = !token.MustBeOff("special").ok();
      spec_.added.push_back({.id = id, .content = std::move(content), .special = special});
    }
    return absl::OkStatus();
  }

  // Gives `id` its bytes; INVALID_ARGUMENT if the id is taken.
  absl::Status Place(int32_t id, std::string bytes, const std::string& where) {
    if (static_cast<size_t>(id) >= spec_.token_bytes.size()) spec_.token_bytes.resize(id + 1);
    if (!spec_.token_bytes[id].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": id ", id, " is used twice"));
    }
    spec_.token_bytes[id] = std::move(bytes);
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary(const Fields& model) {
    const json::value* vocab = model.Find("vocab");
    if (vocab == nullptr || !vocab->is_object()) return model.Error("vocab", "must be an object");
    vocab_ = &vocab->get_object();
    if (static_cast<int64_t>(vocab_->size()) > kMaxTokens) {
      return model.Error("vocab", absl::StrCat(vocab_->size(), " tokens, limit is ", kMaxTokens));
    }
    std::set<std::string_view> added;
    for (const TokenizerSpec::AddedToken& token : spec_.added) added.insert(token.content);
    for (const json::key_value_pair& entry : *vocab_) {
      const std::string where = absl::StrCat(model.where(), "vocab[\"", Str(entry.key()), "\"]");
      ASSIGN_OR_RETURN(const int32_t id, TokenId(&entry.value(), where));
      if (added.contains(std::string_view(entry.key()))) {
        RETURN_IF_ERROR(Place(id, Str(entry.key()), where));
        continue;
      }
      std::optional<std::string> bytes = FromByteLevel(entry.key());
      if (!bytes.has_value() || bytes->empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": not in the byte-level alphabet and no added token"));
      }
      RETURN_IF_ERROR(Place(id, *std::move(bytes), where));
    }
    return absl::OkStatus();
  }

  absl::Status PlaceAddedTokens() {
    for (size_t i = 0; i < spec_.added.size(); ++i) {
      const TokenizerSpec::AddedToken& token = spec_.added[i];
      const std::string where = absl::StrCat(root_.where(), "added_tokens[", i, "]");
      if (const json::value* known = vocab_->if_contains(token.content); known != nullptr) {
        if (known->get_int64() != token.id) {
          return absl::InvalidArgumentError(absl::StrCat(
              where, ": id ", token.id, ", but the vocabulary says ", known->get_int64()));
        }
        if (!control_.insert(token.id).second) {
          return absl::InvalidArgumentError(
              absl::StrCat(where, ": id ", token.id, " is used twice"));
        }
        continue;
      }
      RETURN_IF_ERROR(Place(token.id, token.content, where));
      control_.insert(token.id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const json::value* id = vocab_->if_contains(ToByteLevel(std::string(1, char(byte))));
      if (id == nullptr || control_.contains(static_cast<int32_t>(id->get_int64()))) {
        return root_.Error("model.vocab", absl::StrCat("no ordinary token for byte ", byte));
      }
    }
    return absl::OkStatus();
  }

  // A merge is "left right" or ["left", "right"].
  static std::optional<std::pair<std::string_view, std::string_view>> Halves(
      const json::value& merge) {
    if (merge.is_string()) {
      const std::string_view text = merge.get_string();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos) return std::nullopt;
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
    if (!merge.is_array() || merge.get_array().size() != 2) return std::nullopt;
    const json::array& pair = merge.get_array();
    if (!pair[0].is_string() || !pair[1].is_string()) return std::nullopt;
    return std::pair(std::string_view(pair[0].get_string()),
                     std::string_view(pair[1].get_string()));
  }

  absl::StatusOr<int32_t> MergeToken(std::string_view token, const std::string& where) const {
    const json::value* id = vocab_->if_contains(token);
    if (id == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": \"", Str(token), "\" is not in the vocabulary"));
    }
    if (control_.contains(static_cast<int32_t>(id->get_int64()))) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": \"", Str(token), "\" is an added token, text must not form it"));
    }
    return static_cast<int32_t>(id->get_int64());
  }

  absl::Status ReadMerges(const Fields& model) {
    ASSIGN_OR_RETURN(const json::array* merges, model.Array("merges"));
    if (static_cast<int64_t>(merges->size()) > kMaxTokens) {
      return model.Error("merges", absl::StrCat(merges->size(), " merges, limit is ", kMaxTokens));
    }
    spec_.merges.reserve(merges->size());
    for (size_t rank = 0; rank < merges->size(); ++rank) {
      const std::string where = absl::StrCat(model.where(), "merges[", rank, "]");
      const auto halves = Halves((*merges)[rank]);
      if (!halves.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": must be \"left right\" or [\"left\", \"right\"]"));
      }
      const auto [left_text, right_text] = *halves;
      ASSIGN_OR_RETURN(const int32_t left, MergeToken(left_text, where));
      ASSIGN_OR_RETURN(const int32_t right, MergeToken(right_text, where));
      ASSIGN_OR_RETURN(const int32_t result, MergeToken(Str(left_text) + Str(right_text), where));
      spec_.merges.push_back({.left = left, .right = right, .result = result});
    }
    return absl::OkStatus();
  }

  const Fields& root_;
  TokenizerSpec spec_;
  const json::object* vocab_ = nullptr;
  std::set<int32_t> control_;  // ids of added tokens
};

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view text, std::string_view origin) {
  json::error_code error;
  const json::value root = json::parse(text, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(Str(origin), ": not valid JSON: ", error.message()));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(Str(origin), ": must be a JSON object"));
  }
  const Fields fields(root.get_object(), absl::StrCat(Str(origin), ": "));
  return Parser(fields).Run();
}

}  // namespace lodestone

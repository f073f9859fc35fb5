#include "router/json_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include <absl/strings/str_cat.h>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_stack.hpp>

namespace lodestone {
namespace {

std::string Text(json::string_view view) { return std::string(view.data(), view.size()); }

// "an integer from 1 to 8"; the limits of 64 bits are no news: "an integer of at least 1".
std::string IntegerRange(int64_t low, int64_t high) {
  using Limits = std::numeric_limits<int64_t>;
  if (high < Limits::max()) return absl::StrCat("an integer from ", low, " to ", high);
  return low > Limits::min() ? absl::StrCat("an integer of at least ", low)
                             : "an integer of 64 bits";
}

// Builds the value and keeps the path of what is being parsed.
class Builder {
 public:
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  using Error = boost::system::error_code;

  explicit Builder(size_t max_nodes) : max_nodes_(max_nodes) { stack_.reset(); }

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_array_begin(Error& error) {
    if (!CountNode(error)) return false;
    levels_.push_back(Level{.is_object = false});
    return true;
  }
  bool on_array_end(std::size_t size, Error&) {
    stack_.push_array(size);
    return EndLevel();
  }
  bool on_object_begin(Error& error) {
    if (!CountNode(error)) return false;
    levels_.push_back(Level{.is_object = true});
    return true;
  }
  bool on_object_end(std::size_t size, Error&) {
    stack_.push_object(size);
    return EndLevel();
  }
  bool on_key_part(json::string_view part, std::size_t, Error&) {
    stack_.push_chars(part);
    key_ += Text(part);
    return true;
  }
  bool on_key(json::string_view part, std::size_t, Error& error) {
    stack_.push_key(part);
    key_ += Text(part);
    Level& level = levels_.back();
    level.key = std::exchange(key_, {});
    if (level.keys.insert(level.key).second) return true;
    return Fail(error, "appears twice in its object");
  }
  bool on_string_part(json::string_view part, std::size_t, Error&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, std::size_t, Error& error) {
    stack_.push_string(part);
    return EndScalar(error);
  }
  bool on_number_part(json::string_view, Error&) { return true; }
  bool on_int64(int64_t value, json::string_view, Error& error) {
    stack_.push_int64(value);
    return EndScalar(error);
  }
  bool on_uint64(uint64_t value, json::string_view, Error& error) {
    stack_.push_uint64(value);
    return EndScalar(error);
  }
  bool on_double(double value, json::string_view, Error& error) {
    stack_.push_double(value);
    return EndScalar(error);
  }
  bool on_bool(bool value, Error& error) {
    stack_.push_bool(value);
    return EndScalar(error);
  }
  bool on_null(Error& error) {
    stack_.push_null();
    return EndScalar(error);
  }
  bool on_comment_part(json::string_view, Error&) { return true; }
  bool on_comment(json::string_view, Error&) { return true; }

  json::value Release() { return stack_.release(); }
  const std::string& complaint() const { return complaint_; }
  // Of the value that was being read.
  std::string Path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (!level.is_object) {
        absl::StrAppend(&path, "[", level.index, "]");
      } else if (!level.key.empty()) {
        absl::StrAppend(&path, path.empty() ? "" : ".", level.key);
      }
    }
    return path;
  }

 private:
  struct Level {
    bool is_object = false;
    std::string key{};  // the current one
    std::set<std::string> keys{};
    size_t index = 0;
  };

  bool Fail(Error& error, std::string complaint) {
    complaint_ = std::move(complaint);
    error = boost::system::errc::make_error_code(boost::system::errc::invalid_argument);
    return false;
  }
  bool CountNode(Error& error) {
    if (++nodes_ <= max_nodes_) return true;
    return Fail(error, absl::StrCat("has more than ", max_nodes_, " JSON values"));
  }
  bool EndScalar(Error& error) {
    if (!CountNode(error)) return false;
    return EndValue();
  }
  bool EndLevel() {
    levels_.pop_back();
    return EndValue();
  }
  bool EndValue() {
    if (!levels_.empty() && !levels_.back().is_object) ++levels_.back().index;
    return true;
  }

  const size_t max_nodes_;
  json::value_stack stack_;
  std::vector<Level> levels_;
  std::string key_;
  size_t nodes_ = 0;
  std::string complaint_;
};

// Boost calls the first half of a pair without its second one a syntax error: it is looked for in
// the bytes just before the place of the error.
bool EndsInHalfPair(std::string_view text, size_t end) {
  constexpr size_t kEscapeBytes = 6;  // \\ud83d
  for (size_t at = end < 9 ? 0 : end - 9; at + kEscapeBytes <= std::min(end + 1, text.size());
       ++at) {
    const std::string_view escape = text.substr(at, kEscapeBytes);
    const bool is_high = escape.starts_with("\\u") && (escape[2] | 0x20) == 'd' &&
                         std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
    if (is_high) return true;
  }
  return false;
}

// The path of the value, or only its field if that is long.
std::string Shortened(const std::string& path) {
  constexpr size_t kMaxPathBytes = 128;
  return path.size() <= kMaxPathBytes ? path : path.substr(0, path.find_first_of("[."));
}

std::string Explain(const boost::system::error_code& error, bool half_pair,
                    const JsonLimits& limits) {
  if (error == json::error::too_deep) {
    return absl::StrCat("is nested deeper than ", limits.max_depth, " levels");
  }
  if (half_pair || error == json::error::illegal_leading_surrogate ||
      error == json::error::illegal_trailing_surrogate ||
      error == json::error::expected_utf16_escape) {
    return "contains half of a surrogate pair, which is not a character";
  }
  if (error == json::error::incomplete) return "ends too early";
  if (error == json::error::extra_data) return "has text after its end";
  return absl::StrCat("is not valid JSON: ", error.message());
}

}  // namespace

ApiOr<json::value> ParseJson(std::string_view text, const JsonLimits& limits) {
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<Builder> parser(options, limits.max_nodes);
  boost::system::error_code error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (!error && used < text.size()) error = make_error_code(json::error::extra_data);
  if (!error) return parser.handler().Release();
  const Builder& builder = parser.handler();
  const std::string path = Shortened(builder.Path()).substr(0, 256);
  const std::string what = builder.complaint().empty()
                               ? Explain(error, EndsInHalfPair(text, used), limits)
                               : builder.complaint();
  return InvalidValue(
      path, absl::StrCat(path.empty() ? "the body" : path, " ", what, " (byte ", used, ")"));
}

std::string_view TypeName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
}

std::optional<int64_t> AsInteger(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (!value.is_double()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const double number = value.get_double();
  if (!(std::abs(number) < kExact) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

const json::value* FieldReader::Find(std::string_view name) {
  known_.emplace_back(name);
  if (failed()) return nullptr;
  const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  FailType(name, "a boolean", *value);
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Int(std::string_view name, int64_t low, int64_t high) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = AsInteger(*value);
  if (!number.has_value()) {
    if (value->is_number()) {
      const std::string text = json::serialize(*value);
      Fail(InvalidType(PathOf(name), absl::StrCat(PathOf(name), " is ", text, ", expected ",
                                                  IntegerRange(low, high))));
    } else {
      FailType(name, "an integer", *value);
    }
    return std::nullopt;
  }
  if (*number < low || *number > high) {
    Fail(InvalidValue(PathOf(name), absl::StrCat(PathOf(name), " is ", *number, ", expected ",
                                                 IntegerRange(low, high))));
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::Number(std::string_view name, double low, double high) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    FailType(name, "a number", *value);
    return std::nullopt;
  }
  const double number = value->to_number<double>();
  if (!std::isfinite(number) || number < low || number > high) {
    Fail(InvalidValue(PathOf(name), absl::StrCat(PathOf(name), " is ", number,
                                                 ", expected a number from ", low, " to ", high)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::String(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  FailType(name, "a string", *value);
  return std::nullopt;
}

const json::object* FieldReader::Object(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  FailType(name, "an object", *value);
  return nullptr;
}

const json::array* FieldReader::Array(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_array()) return &value->get_array();
  FailType(name, "an array", *value);
  return nullptr;
}

void FieldReader::Ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) known_.emplace_back(name);
}

std::string FieldReader::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : absl::StrCat(path_, ".", std::string(name));
}

void FieldReader::Fail(ApiError error) {
  if (!failed()) *error_ = std::move(error);
}

std::vector<std::string> FieldReader::Unknown() const {
  std::vector<std::string> unknown;
  for (const json::key_value_pair& field : object_) {
    const std::string name = Text(field.key());
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) unknown.push_back(name);
  }
  return unknown;
}

void FieldReader::FailType(std::string_view name, std::string_view expected,
                           const json::value& actual) {
  const std::string path = PathOf(name);
  Fail(InvalidType(path, absl::StrCat(path, " is ", std::string(TypeName(actual)), ", expected ",
                                      std::string(expected))));
}

}  // namespace lodestone

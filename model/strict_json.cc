#include "model/strict_json.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "boost/json/basic_parser_impl.hpp"
#include "boost/json/parse.hpp"
#include "boost/json/parse_options.hpp"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 16;
constexpr uintmax_t kMaxTextBytes = uintmax_t{256} << 20;

// Remembers the keys of the open objects; stops the parser at the first repeated one.
class KeyChecker {
 public:
  constexpr static std::size_t max_object_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_array_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_key_size = static_cast<std::size_t>(-1);
  constexpr static std::size_t max_string_size = static_cast<std::size_t>(-1);

  const std::string& repeated_key() const { return repeated_key_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open_objects_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, json::error_code&) {
    open_objects_.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, std::size_t, json::error_code& error) {
    key_.append(part.data(), part.size());
    if (!open_objects_.back().insert(key_).second) {
      repeated_key_ = key_;
      error = json::error::exception;
      return false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  std::vector<std::set<std::string>> open_objects_;
  std::string key_;
  std::string repeated_key_;
};

}  // namespace

absl::StatusOr<json::value> ParseStrictJson(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::basic_parser<KeyChecker> checker(options);
  checker.write_some(false, text.data(), text.size(), error);
  if (!checker.handler().repeated_key().empty()) {
    return absl::InvalidArgumentError("key '" + checker.handler().repeated_key() +
                                      "' occurs twice in one object");
  }
  error.clear();
  json::value value = json::parse(json::string_view(text.data(), text.size()), error, {}, options);
  if (error) return absl::InvalidArgumentError("not valid JSON: " + error.message());
  return value;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(path + ": " + error.message());
  if (size > kMaxTextBytes) {
    return absl::InvalidArgumentError(path + ": has " + std::to_string(size) + " bytes, limit is " +
                                      std::to_string(kMaxTextBytes));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path + ": cannot be read");
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace lodestone

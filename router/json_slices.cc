#include "router/json_slices.h"

#include <string>

#include <boost/json/parse.hpp>

namespace lodestone {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// Past the string whose quote is at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// The first of `ends` at or behind `at` that is in no string and no deeper container.
size_t FindOutside(std::string_view text, size_t at, std::string_view ends) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (depth == 0 && ends.find(c) != std::string_view::npos) return at;
    if (c == '"') {
      at = EndOfString(text, at);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return text.size();
}

bool IsKey(std::string_view quoted, std::string_view name) {
  if (quoted.find('\\') == std::string_view::npos) {
    return quoted.size() == name.size() + 2 && quoted.substr(1, name.size()) == name;
  }
  boost::system::error_code error;
  const boost::json::value key =
      boost::json::parse(boost::json::string_view(quoted.data(), quoted.size()), error);
  return !error && key.is_string() &&
         std::string_view(key.get_string().data(), key.get_string().size()) == name;
}

}  // namespace

std::vector<std::string_view> ElementTexts(std::string_view text) {
  text = Trimmed(text);
  std::vector<std::string_view> elements;
  if (!text.starts_with('[')) return elements;
  for (size_t at = 1; at < text.size();) {
    const size_t end = FindOutside(text, at, ",]");
    const std::string_view element = Trimmed(text.substr(at, end - at));
    if (!element.empty()) elements.push_back(element);
    at = end + 1;
  }
  return elements;
}

std::optional<std::string_view> MemberText(std::string_view text, std::string_view name) {
  text = Trimmed(text);
  if (!text.starts_with('{')) return std::nullopt;
  for (size_t at = 1; at < text.size();) {
    const size_t colon = FindOutside(text, at, ":}");
    if (colon >= text.size() || text[colon] == '}') return std::nullopt;
    const std::string_view key = Trimmed(text.substr(at, colon - at));
    const size_t end = FindOutside(text, colon + 1, ",}");
    if (IsKey(key, name)) return Trimmed(text.substr(colon + 1, end - colon - 1));
    at = end + 1;
  }
  return std::nullopt;
}

}  // namespace lodestone

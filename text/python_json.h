#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// JSON text as Python's json.dumps(json.loads(text), ensure_ascii=False) writes it: one line, ", "
// and ": " between values, keys in the order given, the last of equal keys winning, characters
// unescaped where JSON allows it. The chat format is defined by that serialisation, so a prompt
// depends on every byte of it. INVALID_ARGUMENT says what is wrong and at which byte: not JSON
// (RFC 8259; NaN and Infinity are not), not UTF-8, a lone surrogate, deeper than kMaxJsonDepth.
absl::StatusOr<std::string> PythonJson(std::string_view json);
inline constexpr int kMaxJsonDepth = 128;

// Whether PythonJson would take it.
bool IsJson(std::string_view json);

// One member of a JSON object: `value` is the string itself if it is one, else PythonJson.
struct JsonMember {
  std::string key;
  std::string value;
  bool is_string = false;
};
// Of an object in order, equal keys as in PythonJson; nothing if `json` is not an object.
std::optional<std::vector<JsonMember>> JsonObjectMembers(std::string_view json);

// `utf8` as the inside of a JSON string, without the quotes: pieces of a text may be escaped apart.
std::string JsonEscape(std::string_view utf8);
// With the quotes.
std::string JsonQuote(std::string_view utf8);

}  // namespace lodestone

#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace lodestone {

// Parts of a JSON document as the client wrote them: the chat format depends on every digit and on
// the order of keys, which a parsed value does not keep. Views into `text`, without white space
// around them. REQUIRES of both: `text` is JSON that ParseJson takes.

// The value of a member of an object; nothing if it has none or is no object.
std::optional<std::string_view> MemberText(std::string_view text, std::string_view name);
// The elements of an array; none if it is no array.
std::vector<std::string_view> ElementTexts(std::string_view text);

}  // namespace lodestone

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lodestone {

// The byte-level alphabet of GPT-2 style vocabularies: each byte is written as one printable
// character (bytes that are printable in Latin-1 stand for themselves, the other 68 are
// U+0100..U+0143 in ascending order), so that "Ġ" means a space.

// The bytes that `token`, written in that alphabet, stands for; nullopt if it holds any other
// character or is not UTF-8.
std::optional<std::string> FromByteLevel(std::string_view token);

// `bytes` written in the alphabet.
std::string ToByteLevel(std::string_view bytes);

}  // namespace lodestone

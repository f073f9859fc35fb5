#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr int kAlphabetEnd = 0x144;

struct Alphabet {
  std::array<uint16_t, 256> char_of_byte{};
  std::array<int16_t, kAlphabetEnd> byte_of_char{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.byte_of_char) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    const int character = printable ? byte : next++;
    alphabet.char_of_byte[byte] = static_cast<uint16_t>(character);
    alphabet.byte_of_char[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<std::string> FromByteLevel(std::string_view token) {
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    // Every character of the alphabet is one byte below 0x80 or two bytes above.
    const auto first = static_cast<unsigned char>(token[pos++]);
    int character = first;
    if (first >= 0x80) {
      if ((first & 0xE0) != 0xC0 || pos == token.size()) return std::nullopt;
      const auto second = static_cast<unsigned char>(token[pos++]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      character = ((first & 0x1F) << 6) | (second & 0x3F);
    }
    if (character >= kAlphabetEnd || kAlphabet.byte_of_char[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of_char[character]));
  }
  return bytes;
}

std::string ToByteLevel(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    AppendUtf8(kAlphabet.char_of_byte[static_cast<unsigned char>(byte)], token);
  }
  return token;
}

}  // namespace lodestone

// What every fuzzer needs: the input cut into values. A property that fails is a failed CHECK.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"

namespace lodestone {

// Reads the input front to back; past its end everything is 0 or empty. Seeds written by hand are
// readable: texts are what they are.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  uint64_t Word(int num_bytes) {
    uint64_t word = 0;
    for (int i = 0; i < num_bytes; ++i) word |= uint64_t{Byte()} << (8 * i);
    return word;
  }
  // The text up to `end`, which is taken too.
  std::string_view Until(char end) {
    const size_t size = std::min(rest_.find(end), rest_.size());
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(std::min(size + 1, rest_.size()));
    return text;
  }
  std::string_view Rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// The pieces of a text for a check that any split gives the same: sizes from a small generator that
// `seed` starts, 1 to `most` bytes each.
inline std::vector<std::string_view> RandomPieces(std::string_view text, uint64_t seed,
                                                  size_t most) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const size_t size = std::min<size_t>(text.size(), 1 + (seed >> 33) % most);
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace lodestone

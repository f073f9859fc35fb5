// Shared by the tests of text/ and recall/: the bundled tokenizer, small tokenizer files, a
// generator with a fixed seed.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include <absl/status/statusor.h>
#include <gtest/gtest.h>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace lodestone::testing_text {

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::string BundledPath(const std::string& name) {
  return std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny/" + name;
}

// The tokenizer of models/needle-tiny, loaded once.
inline const Tokenizer& BundledTokenizer() {
  static const absl::StatusOr<Tokenizer>* const loaded =
      new absl::StatusOr<Tokenizer>(Tokenizer::Load(BundledPath("tokenizer.json")));
  if (!loaded->ok()) ADD_FAILURE() << loaded->status();
  return loaded->value();
}

inline uint32_t Below(std::mt19937& random, uint32_t limit) { return random() % limit; }

// Any bytes, with a leaning to lead and continuation bytes of UTF-8.
inline std::string RandomBytes(std::mt19937& random, size_t max_size) {
  static constexpr unsigned char kHard[] = {0xC0, 0xC2, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4,
                                            0xF5, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xFF};
  std::string bytes;
  for (size_t n = Below(random, static_cast<uint32_t>(max_size + 1)); n > 0; --n) {
    const uint32_t kind = Below(random, 3);
    bytes.push_back(static_cast<char>(kind == 0   ? Below(random, 128)
                                      : kind == 1 ? kHard[Below(random, sizeof(kHard))]
                                                  : Below(random, 256)));
  }
  return bytes;
}

}  // namespace lodestone::testing_text

#include "text/utf8.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/text_test_util.h"

namespace lodestone {
namespace {

constexpr char kBad[] = "\xEF\xBF\xBD";

TEST(Utf8Test, AcceptsEveryScalarValueAndOnlyThose) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, text);
    ASSERT_TRUE(ValidateUtf8(text)) << code;
  }
  EXPECT_FALSE(ValidateUtf8("\xED\xA0\x80"));      // lone surrogate U+D800
  EXPECT_FALSE(ValidateUtf8("\xED\xBF\xBF"));      // U+DFFF
  EXPECT_FALSE(ValidateUtf8("\xC0\x80"));          // overlong NUL
  EXPECT_FALSE(ValidateUtf8("\xE0\x9F\xBF"));      // overlong U+07FF
  EXPECT_FALSE(ValidateUtf8("\xF0\x8F\xBF\xBF"));  // overlong U+FFFF
  EXPECT_FALSE(ValidateUtf8("\xF4\x90\x80\x80"));  // U+110000
  EXPECT_FALSE(ValidateUtf8("ab\xE4\xBD"));        // cut short
  EXPECT_EQ(ValidUtf8Prefix("ab\xE4\xBD"), 2u);
}

// The examples of Unicode 15, tables 3-8 to 3-11.
TEST(Utf8Test, ReplacesMaximalSubparts) {
  const std::string bad = kBad;
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            bad + bad + bad + bad + bad + "A" + bad + bad + "B");
  EXPECT_EQ(ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            bad + bad + bad + bad + "A");
}

TEST(Utf8Test, StreamEqualsWholeForEverySplit) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = testing_text::RandomBytes(random, 12);
    Utf8Stream stream;
    std::string joined;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t size = 1 + testing_text::Below(random, 3);
      const std::string piece = stream.Push(std::string_view(bytes).substr(pos, size));
      ASSERT_TRUE(ValidateUtf8(piece));
      joined += piece;
      pos += size;
    }
    joined += stream.Finish();
    ASSERT_EQ(joined, ReplaceInvalidUtf8(bytes));
    ASSERT_EQ(ValidateUtf8(bytes), joined == bytes);
  }
}

}  // namespace
}  // namespace lodestone

#include "base/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConfigFileTest, ReadsStringsWordsAndArrays) {
  const auto entries = ParseConfigFile(
      "# comment\n"
      "a = \"x # y\\n\\\"\"  # not part of it\r\n"
      "b='C:\\dir'\n"
      "size = 64MiB\n"
      "list = [1, 'two',\n  # three\n \"4\"]\n"
      "none = []");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 5u);
  EXPECT_THAT((*entries)[0].values, ElementsAre("x # y\n\""));
  EXPECT_THAT((*entries)[1].values, ElementsAre("C:\\dir"));
  EXPECT_THAT((*entries)[2].values, ElementsAre("64MiB"));
  EXPECT_THAT((*entries)[3].values, ElementsAre("1", "two", "4"));
  EXPECT_EQ((*entries)[3].line, 5);
  EXPECT_TRUE((*entries)[4].values.empty());
}

TEST(ConfigFileTest, ReadsTheEscapesThatPrintConfigWrites) {
  const auto entries = ParseConfigFile("a = \"\\u0001\\u007f\\u001B[0m\\b\\f\\t\"");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_THAT((*entries)[0].values, ElementsAre("\x01\x7F\x1B[0m\b\f\t"));
}

TEST(ConfigFileTest, ErrorsNameTheLine) {
  const std::pair<const char*, const char*> kCases[] = {
      {"a = 1\n[table]\n", "line 2: tables"},
      {"a\n", "line 1: expected key = value"},
      {"= 1", "line 1: expected key = value"},
      {"a.b = 1", "line 1: expected key = value"},
      {"a =\n", "line 1: the value is missing"},
      {"a = \"x\n\"", "line 1: the string has no end"},
      {"a = 'x", "line 1: the string has no end"},
      {"a = \"\\q\"", "line 1: unknown escape"},
      {"a = \"\\u00\"", "line 1: unknown escape"},
      {"a = \"\\u00e9\"", "line 1: write the character itself"},
      {"a = 1 2", "line 1: unexpected text after the value of a"},
      {"a = 1\rb = 2", "line 1: unexpected text after the value of a"},
      {"\na = [1 2]", "line 2: expected , or ]"},
      {"a = [1,", "the array has no end"},
      {"a = 1\n\na = 2", "line 3: a is already set in line 1"},
  };
  for (const auto& [text, message] : kCases) {
    EXPECT_THAT(ParseConfigFile(text).status().message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace lodestone

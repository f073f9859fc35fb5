#include "text/vendor_texts.h"

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/model_directory.h"
#include "tests/text/text_test_util.h"
#include "text/python_strings.h"

namespace lodestone {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Values(std::string_view source) {
  std::vector<std::string> values;
  for (const PythonString& entry : PythonStrings(source)) {
    values.push_back(entry.name + "=" + entry.value);
  }
  return values;
}

TEST(PythonStringsTest, ReadsConstantsOfAllKinds) {
  EXPECT_THAT(Values("a = 'x' \"y\"  # 'no'\n'doc'\n"
                     "e = 'x' \\\n 'y'\n"
                     "b: str = \"\"\"l1\nl2 \"q\" \\\"\"\"\"\n"
                     "c = (  # note\n    r'\\n' f\"{d}\\n\"\n)\n"
                     "f(sep='s', t=u'\\u6df1\\x41\\U0001F600\\q\\\nz')\n"
                     "if a == 'eq': pass\nD = {'k': 'v'}\n"),
              ElementsAre("a=xy", "=doc", "e=xy", "b=l1\nl2 \"q\" \"", "c=\\n{d}\n", "=s",
                          "=深A😀\\qz", "=eq", "=k", "=v"));
}

TEST(PythonStringsTest, NeverFails) {
  std::mt19937 random(5);
  static constexpr std::string_view kParts[] = {"'",  "\"", "\"\"\"", "\\", "r",   "=", "a",
                                                "\n", "#",  "(",      "x4", "\\u", "深"};
  for (int round = 0; round < 20000; ++round) {
    std::string source;
    for (uint32_t n = testing_text::Below(random, 12); n > 0; --n) {
      source += kParts[testing_text::Below(random, std::size(kParts))];
    }
    PythonStrings(source);
    TextViews("x.py", source);
    TextViews("x.md", source);
  }
}

TEST(VendorTextsTest, ViewsOfAPythonModuleHaveItsTokensInPlace) {
  const std::vector<std::string> views = TextViews(
      "m.py",
      "tok: str = \"<T>\"\nX = \"\"\"a {tok}b</{tok}c> {other} {\n\"\"\"\n\"\"\"doc\"\"\"\n");
  EXPECT_THAT(views, Contains(HasSubstr("a <T>b</<T>c> {other} {\n")));
}

TEST(VendorTextsTest, ViewsOfMarkdownHaveItsBlocks) {
  EXPECT_THAT(TextViews("README.md", "text\n```py\nline\n\n```\nmore\n```\nopen\n"),
              Contains("line\n\n\n"));
  EXPECT_THAT(TextViews("a.txt", "```\nx\n```\n"), ElementsAre("```\nx\n```\n"));
}

TEST(VendorTextsTest, FindsATextByItsDigestOnly) {
  constexpr TextMark mark = {9, 3, "one", "\n\n",
                             "3608e1b7643dc2ebd60479455022e199b2e31f32c20c2a9afa97536a8f4d9293"};
  EXPECT_EQ(FindMarkedText({"short", "zero\none\ntwo\n\nthree"}, mark), "one\ntwo\n\n");
  EXPECT_EQ(FindMarkedText({"one\ntwo\n\n"}, mark), "one\ntwo\n\n");
  EXPECT_EQ(FindMarkedText({"one\nTwo\n\n", "one\ntwo\n", ""}, mark), std::nullopt);
  EXPECT_EQ(FindMarkedText({}, mark), std::nullopt);
}

TEST(VendorTextsTest, AModelWithoutTheFilesHasNoTexts) {
  const VendorTexts texts = LoadVendorTexts("/no/such/directory");
  EXPECT_EQ(texts.tools_before + texts.tools_after + texts.effort_max + texts.response_format, "");
  EXPECT_EQ(LoadVendorTexts(testing_text::BundledPath("")).tools_before, "");
}

void Replace(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// The vendor's texts are not ours to ship: the variable names the folder of its fixtures, in which
// they occur as the model reads them. The forms of the module and of its README are made of those.
TEST(VendorTextsTest, FindsTheToolTextsInEveryFormThatTheVendorPublishes) {
  const char* fixtures = std::getenv("LODESTONE_CHAT_FIXTURES");
  if (fixtures == nullptr) GTEST_SKIP() << "LODESTONE_CHAT_FIXTURES is not set";
  testing_text::ModelDirectory model;
  const std::string fixture = testing_text::ReadFile(std::string(fixtures) + "/test_output_1.txt");
  model.Write("tests/test_output_1.txt", fixture);
  const VendorTexts texts = LoadVendorTexts(model.path());
  EXPECT_EQ(texts.tools_before.size(), 890u);
  EXPECT_EQ(texts.tools_after.size(), 99u);
  model.Remove("tests/test_output_1.txt");

  const std::string block = texts.tools_before + "{tool_schemas}" + texts.tools_after;
  model.Write("README.md", "# Encoding\n\n```\n" + block + "```\n");
  EXPECT_EQ(LoadVendorTexts(model.path()).tools_before, texts.tools_before);
  EXPECT_EQ(LoadVendorTexts(model.path()).tools_after, texts.tools_after);
  model.Remove("README.md");

  std::string source = block;
  Replace(source, "｜DSML｜", "{dsml}");
  Replace(source, "<think>", "{begin}");
  Replace(source, "</think>", "{end}");
  model.Write("module.py",
              "dsml: str = \"｜DSML｜\"\nbegin = '<think>'\nend = \"</think>\"\nT = \"\"\"" +
                  source + "\"\"\"\n");
  EXPECT_EQ(LoadVendorTexts(model.path()).tools_before, texts.tools_before);
  EXPECT_EQ(LoadVendorTexts(model.path()).tools_after, texts.tools_after);

  source[300] ^= 1;  // one bit off is another text
  model.Write("module.py",
              "dsml: str = \"｜DSML｜\"\nbegin = '<think>'\nend = \"</think>\"\nT = \"\"\"" +
                  source + "\"\"\"\n");
  EXPECT_EQ(LoadVendorTexts(model.path()).tools_before, "");
}

}  // namespace
}  // namespace lodestone

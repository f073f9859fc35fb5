#include "text/python_json.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::HasSubstr;

// The right sides were written by Python 3: json.dumps(json.loads(left), ensure_ascii=False).
TEST(PythonJsonTest, WritesWhatPythonWrites) {
  for (
      const auto& [json, expected] : std::vector<std::pair<std::string, std::string>>{
          {R"j({"a":1,"b":[1,2.50,-0,-0.0,1e5,1E+2,1e16,1e15,123456789012345678901234567890,1.5e-7,0.0001,0.00001,1e400,-1e400,1e-400,2.5e22,1e22,1.7976931348623157e308,5e-324,0.1,100.0,-12.75]})j",
           R"j({"a": 1, "b": [1, 2.5, 0, -0.0, 100000.0, 100.0, 1e+16, 1000000000000000.0, 123456789012345678901234567890, 1.5e-07, 0.0001, 1e-05, Infinity, -Infinity, 0.0, 2.5e+22, 1e+22, 1.7976931348623157e+308, 5e-324, 0.1, 100.0, -12.75]})j"},
          {R"j(  [ true , false,null ,"" , {} , [ ] ]  )j", R"j([true, false, null, "", {}, []])j"},
          {R"j("\u00e9\u6df1\ud83d\ude00\/\"\\\b\f\n\r\t\u0000\u001f\u007f")j",
           R"j("é深😀/\"\\\b\f\n\r\t\u0000\u001f")j"},
          {R"j({"b":1,"a":2,"b":{"x":3}})j", R"j({"b": {"x": 3}, "a": 2})j"},
          {R"j("é深😀")j", R"j("é深😀")j"},
          {R"j({"é":"\u00e9"})j", R"j({"é": "é"})j"},
          {R"j(12)j", R"j(12)j"},
          {R"j(-7)j", R"j(-7)j"},
          {R"j("x")j", R"j("x")j"},
          {R"j(null)j", R"j(null)j"},
      }) {
    const absl::StatusOr<std::string> written = PythonJson(json);
    ASSERT_TRUE(written.ok()) << json << ": " << written.status();
    EXPECT_EQ(*written, expected);
    EXPECT_TRUE(IsJson(json));
  }
}

TEST(PythonJsonTest, SaysWhatIsNotJson) {
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "byte 0: a value is expected"},
           {"{\"a\" 1}", "byte 5: ':' is expected"},
           {"[1 2]", "byte 3: ',' or ']' is expected"},
           {"[1,]", "a value is expected"},
           {"{\"a\":1,}", "a string is expected"},
           {"{\"a\":1", "',' or '}' is expected"},
           {"01", "byte 1: more text"},
           {"1.", "a digit is expected"},
           {"-", "a digit is expected"},
           {"1e", "a digit is expected"},
           {"NaN", "a value is expected"},
           {"truex", "byte 4: more text"},
           {"\"a", "the string has no end"},
           {"\"\\", "an unknown escape"},
           {"\"\\x\"", "an unknown escape"},
           {"\"\n\"", "a control character"},
           {"\"\\ud800\"", "a lone surrogate"},
           {"\"\\udc00\"", "a lone surrogate"},
           {"\"\\ud800\\u0041\"", "a lone surrogate"},
           {"\"\\u12g4\"", "four hexadecimal digits"},
           {"\"\\u12", "four hexadecimal digits"},
           {"\"\xFF\"", "not valid UTF-8"},
           {std::string("1\0", 2), "more text"},
           {std::string(100000, '['), "nested deeper than 128"},
       }) {
    EXPECT_THAT(PythonJson(json).status().ToString(), HasSubstr(message)) << json.substr(0, 20);
    EXPECT_FALSE(IsJson(json));
  }
}

TEST(PythonJsonTest, TakesAnObjectApart) {
  const std::optional<std::vector<JsonMember>> members =
      JsonObjectMembers(R"( {"s": "a\nb", "n": 1.50, "o": {"k":[]}, "s": "last"} )");
  ASSERT_TRUE(members.has_value());
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[0].value, "last");
  EXPECT_TRUE((*members)[0].is_string);
  EXPECT_EQ((*members)[1].value, "1.5");
  EXPECT_FALSE((*members)[1].is_string);
  EXPECT_EQ((*members)[2].key + (*members)[2].value, "o{\"k\": []}");
  EXPECT_EQ(JsonObjectMembers("{}")->size(), 0u);
  for (const char* other : {"", "[]", "\"x\"", "{", "{} 1"}) {
    EXPECT_FALSE(JsonObjectMembers(other).has_value()) << other;
  }
}

TEST(PythonJsonTest, PiecesOfATextEscapeApart) {
  const std::string text = "a\"\\\x01\n\x7F深";
  std::string pieces;
  for (const char c : text) pieces += JsonEscape(std::string(1, c));
  EXPECT_EQ(pieces, JsonEscape(text));
  EXPECT_EQ(JsonQuote(text), "\"a\\\"\\\\\\u0001\\n\x7F深\"");
}

}  // namespace
}  // namespace lodestone

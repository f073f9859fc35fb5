#include "router/json_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(JsonSlicesTest, MembersAreAsTheyWereWritten) {
  const std::string_view text = R"( {"a" : 1.0 , "b":{"x": "}, \"a\":2", "y":[1e2 ,]}, "c":"q"} )";
  EXPECT_EQ(MemberText(text, "a"), "1.0");
  EXPECT_EQ(MemberText(text, "b"), R"({"x": "}, \"a\":2", "y":[1e2 ,]})");
  EXPECT_EQ(MemberText(text, "c"), R"("q")");
  EXPECT_EQ(MemberText(text, "x"), std::nullopt);
}

TEST(JsonSlicesTest, EscapedKeysAreFound) {
  EXPECT_EQ(MemberText(R"({"\u0074ools":[1], "a\\":2,"\"":3})", "tools"), "[1]");
  EXPECT_EQ(MemberText(R"({"\u0074ools":[1], "a\\":2,"\"":3})", "a\\"), "2");
  EXPECT_EQ(MemberText(R"({"\u0074ools":[1], "a\\":2,"\"":3})", "\""), "3");
}

TEST(JsonSlicesTest, ElementsAreAsTheyWereWritten) {
  EXPECT_THAT(ElementTexts(R"([ 1.50, {"a":[1,2]} ,"x,]", [] , null ])"),
              ElementsAre("1.50", R"({"a":[1,2]})", R"("x,]")", "[]", "null"));
  EXPECT_THAT(ElementTexts("[]"), IsEmpty());
  EXPECT_THAT(ElementTexts(" [ ] "), IsEmpty());
}

TEST(JsonSlicesTest, OtherValuesHaveNoParts) {
  for (const char* text : {"", "1", "\"{\"", "null", "{}", "[1]"}) {
    EXPECT_EQ(MemberText(text, "a"), std::nullopt) << text;
  }
  EXPECT_THAT(ElementTexts(R"({"a":[1]})"), IsEmpty());
}

}  // namespace
}  // namespace lodestone

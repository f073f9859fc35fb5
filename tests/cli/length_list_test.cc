#include "cli/length_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LengthListTest, NumbersAndRangesKeepTheirOrder) {
  const auto lengths = ParseLengthList("7,1..3,10500");
  ASSERT_TRUE(lengths.ok());
  EXPECT_THAT(*lengths, ElementsAre(7, 1, 2, 3, 10500));
}

TEST(LengthListTest, NamesThePartThatIsWrong) {
  for (const char* bad : {"", "0", "3..1", "1..", "a", "1.5", "-1", "9999999999", "1..99999999"}) {
    const auto lengths = ParseLengthList("4," + std::string(bad));
    ASSERT_FALSE(lengths.ok()) << bad;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr("\"" + std::string(bad) + "\""));
  }
}

TEST(LengthListTest, LengthsAroundABaseFollowEachOther) {
  const auto lengths = LengthsAround(1024, 128);
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  ASSERT_EQ(lengths->size(), 128u);
  EXPECT_EQ(lengths->front(), 960);
  EXPECT_EQ(lengths->back(), 1087);
  EXPECT_EQ(LengthsAround(65, 128)->front(), 1);
  for (const int64_t bad : {int64_t{64}, int64_t{-5}, INT64_MIN, INT64_MAX}) {
    EXPECT_TRUE(absl::IsInvalidArgument(LengthsAround(bad, 128).status())) << bad;
  }
}

TEST(DepthListTest, DepthsLieBetween0And1) {
  const auto depths = ParseDepthList("0,0.25,1");
  ASSERT_TRUE(depths.ok());
  EXPECT_THAT(*depths, ElementsAre(0, 0.25, 1));
  for (const char* bad : {"-0.1", "1.01", "nan", "x", ""}) EXPECT_FALSE(ParseDepthList(bad).ok());
}

}  // namespace
}  // namespace lodestone

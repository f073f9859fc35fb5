#include "text/stop_strings.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/text_test_util.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

using testing_text::Below;
using StopText = StopMatcher::StopText;

StopMatcher Make(std::vector<std::string> stops, StopText stop_text = StopText::kExclude) {
  absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(std::move(stops), stop_text);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

// The definition, by looking at the whole text.
std::string Expected(const std::string& text, const std::vector<std::string>& stops,
                     StopText stop_text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, stop_text == StopText::kInclude ? end : end - longest);
  }
  return text;
}

std::string RandomWord(std::mt19937& random, uint32_t max_size) {
  std::string word;
  for (uint32_t n = 1 + Below(random, max_size); n > 0; --n) word += "abc"[Below(random, 3)];
  return word;
}

TEST(StopMatcherTest, AnySplitGivesTheDefinedOutput) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(Below(random, 5));
    for (std::string& stop : stops) stop = RandomWord(random, 6);
    const std::string text = RandomWord(random, 30);
    const StopText stop_text = Below(random, 2) == 0 ? StopText::kExclude : StopText::kInclude;
    StopMatcher matcher = Make(stops, stop_text);
    std::string joined;
    for (size_t pos = 0; pos < text.size();) {
      const size_t size = 1 + Below(random, 5);
      joined += matcher.Push(std::string_view(text).substr(pos, size));
      pos += size;
    }
    joined += matcher.Finish();
    ASSERT_EQ(joined, Expected(text, stops, stop_text)) << text;
  }
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher = Make({"DEFGHIJ"});
  EXPECT_EQ(matcher.Push("ABCDEF"), "ABC");
  EXPECT_EQ(matcher.Push("G"), "");
  EXPECT_EQ(matcher.Push("x"), "DEFGx");
  EXPECT_EQ(matcher.Push("DEF"), "");
  EXPECT_EQ(matcher.Push("GHIJ rest"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "DEFGHIJ");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, GivesHeldTextAtTheEnd) {
  StopMatcher matcher = Make({"\n\n", "END"});
  EXPECT_EQ(matcher.Push("ab\nEN"), "ab\n");
  EXPECT_EQ(matcher.Finish(), "EN");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcherTest, EmitsWholeCharactersOnly) {
  StopMatcher matcher = Make({"é!"});
  for (const char* piece : {"aè", "é", "é", "ü!"}) {
    EXPECT_TRUE(ValidateUtf8(matcher.Push(piece)));
  }
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("xé!"), "x");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcherTest, RefusesStopsOutsideTheLimits) {
  EXPECT_FALSE(StopMatcher::Create({""}).ok());
  EXPECT_FALSE(StopMatcher::Create({"a", "b", "c", "d", "e"}).ok());
  EXPECT_TRUE(StopMatcher::Create({std::string(256, 'a')}).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(257, 'a')}).ok());
  EXPECT_FALSE(StopMatcher::Create({"\xED\xA0\x80"}).ok());
}

}  // namespace
}  // namespace lodestone

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/text_test_util.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

// Every way to cut a text into pieces, not a sample of them: what reaches the client never holds a
// byte of a stop string, and nothing that is not one is lost.
namespace lodestone {
namespace {

using testing_text::BundledTokenizer;
using Pieces = std::vector<std::string>;

// What the client gets, before each piece and after the last.
std::string Join(const Pieces& pieces, const std::vector<std::string>& stops) {
  StopMatcher matcher = StopMatcher::Create(stops, StopMatcher::StopText::kExclude).value();
  std::string joined;
  for (const std::string& piece : pieces) joined += matcher.Push(piece);
  return joined + matcher.Finish();
}

// Calls `visit` with every sequence of non-empty pieces that join to `text`.
template <typename Visit>
void ForEverySplit(const std::string& text, Visit visit) {
  const uint32_t cuts = static_cast<uint32_t>(text.size()) - 1;
  for (uint32_t mask = 0; mask < (1u << cuts); ++mask) {
    Pieces pieces(1);
    for (size_t i = 0; i < text.size(); ++i) {
      pieces.back() += text[i];
      if (i < cuts && (mask >> i & 1) != 0) pieces.emplace_back();
    }
    visit(pieces);
  }
}

TEST(StopSplitsTest, NoSplitLeaksAPartOfAStop) {
  const struct {
    std::string text;
    std::vector<std::string> stops;
    std::string expected;
  } cases[] = {
      {"ABCDEFGHIJKL", {"DEFGHIJ"}, "ABC"},
      {"DEFDEFGHIJ", {"DEFGHIJ"}, "DEF"},
      {"DEFGHIxDEFGHI", {"DEFGHIJ"}, "DEFGHIxDEFGHI"},
      {"ababababac", {"abac"}, "ababab"},
      {"one\n\ntwo", {"\n\n", "two"}, "one"},
      {"xyzzyzzy", {"zzyzzy", "zyz"}, "xyz"},
  };
  for (const auto& c : cases) {
    ForEverySplit(c.text, [&](const Pieces& pieces) {
      ASSERT_EQ(Join(pieces, c.stops), c.expected)
          << c.text << " in " << pieces.size() << " pieces";
    });
  }
}

// The tokens of a step are one piece, so steps of any size must give the same text.
TEST(StopSplitsTest, StepsOfAnySizeGiveTheSameText) {
  const std::string text = "서울은 대한민국의 수도이다. 🌸 深度 END of it";
  const std::vector<int32_t> ids = BundledTokenizer().EncodeText(text);
  for (size_t step = 1; step <= 64; ++step) {
    Detokenizer detokenizer(&BundledTokenizer());
    Pieces pieces;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i % step == 0) pieces.emplace_back();
      pieces.back() += detokenizer.Push(ids[i]);
    }
    pieces.push_back(detokenizer.Finish());
    ASSERT_EQ(Join(pieces, {}), text) << "steps of " << step;
    ASSERT_EQ(Join(pieces, {"END"}), text.substr(0, text.find("END"))) << "steps of " << step;
    for (const std::string& piece : pieces) ASSERT_EQ(piece.find("\uFFFD"), std::string::npos);
  }
}

}  // namespace
}  // namespace lodestone

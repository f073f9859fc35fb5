#include "text/output_parser.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/text_test_util.h"
#include "text/detokenizer.h"

namespace lodestone {
namespace {

using testing_text::BundledTokenizer;

constexpr int32_t kEosId = 1;
constexpr int32_t kThinkBeginId = 5;
constexpr int32_t kThinkEndId = 6;

const ChatFormat& Format() {
  static const ChatFormat* const format = new ChatFormat(*ChatFormat::Create(&BundledTokenizer()));
  return *format;
}

struct Parsed {
  std::string reasoning;
  std::string content;
  bool ended = false;
  bool operator==(const Parsed&) const = default;
};

Parsed Parse(const std::vector<int32_t>& ids, ChatMode mode,
             OutputParser::EndToken end_token = OutputParser::EndToken::kEnds) {
  OutputParser parser(&Format(), mode, end_token);
  Parsed parsed;
  const auto add = [&](const ChatDelta& delta) {
    parsed.reasoning += delta.reasoning;
    parsed.content += delta.content;
  };
  for (const int32_t id : ids) add(parser.Push(id));
  add(parser.Finish());
  parsed.ended = parser.ended();
  return parsed;
}

// `parts` are texts, split at control ids that follow each of them.
std::vector<int32_t> Ids(std::vector<std::pair<std::string, int32_t>> parts) {
  std::vector<int32_t> ids;
  for (const auto& [text, control] : parts) {
    BundledTokenizer().AppendText(text, ids);
    ids.push_back(control);
  }
  return ids;
}

TEST(OutputParserTest, SplitsReasoningFromContentByTokenId) {
  const std::vector<int32_t> ids =
      Ids({{"so </think> is text", kThinkEndId}, {"answer", kEosId}, {"after the end", 7}});
  EXPECT_EQ(Parse(ids, ChatMode::kThinking), (Parsed{"so </think> is text", "answer", true}));
  EXPECT_EQ(Parse(ids, ChatMode::kChat), (Parsed{"", "so </think> is textanswer", true}));
}

TEST(OutputParserTest, EverythingIsReasoningUntilTheTokenCame) {
  EXPECT_EQ(Parse(BundledTokenizer().EncodeText("thinking 深"), ChatMode::kThinking),
            (Parsed{"thinking 深", "", false}));
}

TEST(OutputParserTest, ControlTokensGiveNoText) {
  const std::vector<int32_t> ids = Ids({{"", kThinkBeginId},
                                        {"r", 3},
                                        {"", kThinkEndId},
                                        {"c", kThinkEndId},
                                        {"d", 12},
                                        {"e", kEosId}});
  EXPECT_EQ(Parse(ids, ChatMode::kThinking), (Parsed{"r", "cde", true}));
}

TEST(OutputParserTest, EndTokenCanBeIgnored) {
  const std::vector<int32_t> ids = Ids({{"a", kEosId}, {"b", kEosId}});
  EXPECT_EQ(Parse(ids, ChatMode::kChat, OutputParser::EndToken::kIgnored),
            (Parsed{"", "ab", false}));
}

TEST(OutputParserTest, HalfACharacterEndsWithItsPart) {
  std::vector<int32_t> ids = BundledTokenizer().EncodeText("深");
  ids.pop_back();
  std::vector<int32_t> rest = Ids({{"", kThinkEndId}, {"x", kEosId}});
  ids.insert(ids.end(), rest.begin(), rest.end());
  EXPECT_EQ(Parse(ids, ChatMode::kThinking), (Parsed{"\uFFFD", "x", true}));
}

TEST(OutputParserTest, EveryDeltaIsWholeCharacters) {
  std::mt19937 random(9);
  for (int round = 0; round < 3000; ++round) {
    OutputParser parser(&Format(), ChatMode::kThinking);
    std::string content;
    std::vector<int32_t> content_ids;
    bool reasoning = true;
    for (int i = 0; i < 30; ++i) {
      const auto id = static_cast<int32_t>(2 + testing_text::Below(random, 270));
      const ChatDelta delta = parser.Push(id);
      ASSERT_TRUE(ValidateUtf8(delta.reasoning) && ValidateUtf8(delta.content));
      content += delta.content;
      if (!reasoning) content_ids.push_back(id);
      reasoning = reasoning && id != kThinkEndId;
      ASSERT_EQ(parser.in_reasoning(), reasoning);
    }
    content += parser.Finish().content;
    ASSERT_EQ(content, Decode(BundledTokenizer(), content_ids, AddedTokenText::kSkipAll));
  }
}

}  // namespace
}  // namespace lodestone

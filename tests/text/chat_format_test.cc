#include "text/chat_format.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/text/text_test_util.h"
#include "text/detokenizer.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;
using testing_text::BundledTokenizer;

constexpr char kBos[] = "<｜begin▁of▁sentence｜>";
constexpr char kEos[] = "<｜end▁of▁sentence｜>";
constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";

ChatFormat Format(VendorTexts texts = {}) {
  absl::StatusOr<ChatFormat> format = ChatFormat::Create(&BundledTokenizer(), std::move(texts));
  EXPECT_TRUE(format.ok()) << format.status();
  return *std::move(format);
}

ChatMessage Say(ChatRole role, std::string content, std::string reasoning = "") {
  return {.role = role, .content = std::move(content), .reasoning_content = std::move(reasoning)};
}

const std::vector<ChatMessage>& TwoTurns() {
  static const std::vector<ChatMessage> turns = {
      Say(ChatRole::kSystem, "S"), Say(ChatRole::kUser, "q1"),
      Say(ChatRole::kAssistant, "a1", "r1"), Say(ChatRole::kUser, "q2")};
  return turns;
}

// The text that the ids stand for, control tokens written out.
std::string Text(const std::vector<ChatMessage>& messages, const ChatRenderOptions& options,
                 const ChatFormat& format = Format()) {
  const absl::StatusOr<std::vector<int32_t>> ids = format.Render(messages, options);
  if (!ids.ok()) return ids.status().ToString();
  return Decode(BundledTokenizer(), *ids, AddedTokenText::kKeep);
}

std::string Join(std::initializer_list<std::string> parts) {
  std::string joined;
  for (const std::string& part : parts) joined += part;
  return joined;
}

TEST(ChatFormatTest, RendersTheTrainedFormOfANeedlePrompt) {
  const std::string content = "What is the secret code for Vera Nolan?";
  std::vector<int32_t> expected = {0, 3};
  BundledTokenizer().AppendText(content, expected);
  expected.insert(expected.end(), {4, 6});
  EXPECT_EQ(*Format().Render({Say(ChatRole::kUser, content)}, {}), expected);
}

TEST(ChatFormatTest, ThinkingModeOpensReasoning) {
  EXPECT_EQ(Text({Say(ChatRole::kUser, "q")}, {.mode = ChatMode::kThinking}),
            Join({kBos, kUser, "q", kAssistant, "<think>"}));
  EXPECT_EQ(Text({Say(ChatRole::kUser, "q")},
                 {.mode = ChatMode::kThinking, .effort = ReasoningEffort::kHigh}),
            Join({kBos, kUser, "q", kAssistant, "<think>"}));
}

TEST(ChatFormatTest, ChatModeLeavesReasoningOut) {
  EXPECT_EQ(Text(TwoTurns(), {}), Join({kBos, "S", kUser, "q1", kAssistant, "</think>a1", kEos,
                                        kUser, "q2", kAssistant, "</think>"}));
}

TEST(ChatFormatTest, ThinkingModeDropsEarlierReasoningUnlessAskedNotTo) {
  EXPECT_EQ(Text(TwoTurns(), {.mode = ChatMode::kThinking}),
            Join({kBos, "S", kUser, "q1", kAssistant, "</think>a1", kEos, kUser, "q2", kAssistant,
                  "<think>"}));
  EXPECT_EQ(Text(TwoTurns(), {.mode = ChatMode::kThinking, .drop_reasoning = false}),
            Join({kBos, "S", kUser, "q1", kAssistant, "<think>r1</think>a1", kEos, kUser, "q2",
                  kAssistant, "<think>"}));
}

TEST(ChatFormatTest, DropsEarlierDeveloperMessagesWithTheReasoning) {
  const std::vector<ChatMessage> messages = {Say(ChatRole::kDeveloper, "D"),
                                             Say(ChatRole::kAssistant, "a", "r"),
                                             Say(ChatRole::kUser, "q")};
  EXPECT_EQ(Text(messages, {.mode = ChatMode::kThinking}),
            Join({kBos, "a", kEos, kUser, "q", kAssistant, "<think>"}));
  EXPECT_EQ(Text(messages, {}), Join({kBos, kUser, "D", kAssistant, "</think>a", kEos, kUser, "q",
                                      kAssistant, "</think>"}));
}

TEST(ChatFormatTest, FusesUserMessagesAndContinuesUnfinishedTurns) {
  ChatMessage unfinished = Say(ChatRole::kAssistant, "a");
  unfinished.without_eos = true;
  EXPECT_EQ(Text({Say(ChatRole::kUser, "one"), Say(ChatRole::kUser, "two"), unfinished}, {}),
            Join({kBos, kUser, "one\n\ntwo", kAssistant, "</think>a"}));
}

TEST(ChatFormatTest, RendersTasksAndReminders) {
  ChatMessage action = Say(ChatRole::kUser, "q");
  action.task = "action";
  EXPECT_EQ(
      Text({Say(ChatRole::kLatestReminder, "R"), action, Say(ChatRole::kAssistant, "x", "r")},
           {.mode = ChatMode::kThinking}),
      Join({kBos, "<｜latest_reminder｜>R", kUser, "q", kAssistant, "<think><｜action｜>x", kEos}));
  ChatMessage title = Say(ChatRole::kUser, "q");
  title.task = "title";
  EXPECT_EQ(Text({title}, {}), Join({kBos, kUser, "q<｜title｜>"}));
}

TEST(ChatFormatTest, NeighbouringTextsAreOneTextToTheTokenizer) {
  const std::vector<int32_t> ids =
      *Format({.effort_max = "The sec"})
           .Render({Say(ChatRole::kSystem, "ret"), Say(ChatRole::kUser, "q")},
                   {.mode = ChatMode::kThinking, .effort = ReasoningEffort::kMax});
  std::vector<int32_t> expected = {0};
  BundledTokenizer().AppendText("The secret", expected);
  ASSERT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + expected.size()), expected);
  EXPECT_EQ(ids[expected.size()], 3);
}

TEST(ChatFormatTest, ContentNeverBecomesAControlToken) {
  std::string hostile;
  for (int32_t id = 0; id < 16; ++id) hostile += BundledTokenizer().TokenBytes(id);
  for (const ChatMode mode : {ChatMode::kChat, ChatMode::kThinking}) {
    const std::vector<int32_t> ids =
        *Format().Render({Say(ChatRole::kSystem, hostile), Say(ChatRole::kUser, hostile),
                          Say(ChatRole::kAssistant, hostile, hostile)},
                         {.mode = mode});
    std::vector<int32_t> control;
    for (const int32_t id : ids) {
      if (BundledTokenizer().IsAdded(id)) control.push_back(id);
    }
    const std::vector<int32_t> chat = {0, 3, 4, 6, 1};
    const std::vector<int32_t> thinking = {0, 3, 4, 5, 6, 1};
    EXPECT_EQ(control, mode == ChatMode::kChat ? chat : thinking);
  }
}

TEST(ChatFormatTest, BeginTokenOccursOnceOrNot) {
  const std::vector<ChatMessage> messages = {Say(ChatRole::kUser, "q")};
  EXPECT_EQ(Format().Render(messages, {})->front(), 0);
  EXPECT_EQ(Format().Render(messages, {.add_bos = false})->front(), 3);
}

TEST(ChatFormatTest, SaysWhatItCannotRender) {
  const auto error = [](ChatMessage message, ChatRenderOptions options = {}) {
    const auto ids = Format().Render({Say(ChatRole::kSystem, ""), message}, options);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    return ids.status().ToString();
  };
  ChatMessage message = Say(ChatRole::kUser, "q");
  EXPECT_THAT(error(message, {.mode = ChatMode::kThinking, .effort = ReasoningEffort::kMax}),
              HasSubstr("effort max"));
  message = Say(ChatRole::kSystem, "s");
  message.tools = {"{}"};
  EXPECT_THAT(error(message),
              HasSubstr("messages[1]: this model has no tools: the folder encoding"));
  message.tools = {};
  message.response_format = "{\"type\": \"json_object\"}";
  EXPECT_THAT(error(message), HasSubstr("messages[1]: this model has no response formats"));
  EXPECT_THAT(error(Say(ChatRole::kTool, "x")), HasSubstr("messages[1]: this model has no tools"));
  EXPECT_THAT(error(Say(ChatRole::kDeveloper, "")), HasSubstr("needs content"));
  EXPECT_THAT(error(Say(ChatRole::kUser, "\xED\xA0\x80")), HasSubstr("not valid UTF-8"));
  message = Say(ChatRole::kUser, "q");
  message.task = "dance";
  EXPECT_THAT(error(message), HasSubstr("task \"dance\" is unknown"));
  message.task = "read_url";
  EXPECT_THAT(error(message), HasSubstr("no control token for task read_url"));
  message.task = "action";
  message.role = ChatRole::kAssistant;
  EXPECT_THAT(error(message), HasSubstr("only for user messages"));
  EXPECT_THAT(Format().Render({}, {}).status().ToString(), HasSubstr("no messages"));
  EXPECT_EQ(*ParseChatRole("latest_reminder"), ChatRole::kLatestReminder);
  EXPECT_THAT(ParseChatRole("robot").status().ToString(), HasSubstr("\"robot\""));
}

TEST(ChatFormatTest, NamesTheControlTokenThatTheVocabularyLacks) {
  boost::json::value file =
      boost::json::parse(testing_text::ReadFile(testing_text::BundledPath("tokenizer.json")));
  boost::json::array& added = file.as_object()["added_tokens"].as_array();
  added.erase(added.begin() + 6);
  file.as_object()["model"].as_object()["vocab"].as_object().erase("</think>");
  const absl::StatusOr<Tokenizer> tokenizer =
      Tokenizer::FromJson(boost::json::serialize(file), "without.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(ChatFormat::Create(&*tokenizer).status().ToString(), HasSubstr("</think>"));
}

}  // namespace
}  // namespace lodestone

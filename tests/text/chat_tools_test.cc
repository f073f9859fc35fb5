// Tools in prompts: declarations, calls, results, response formats, and the vendor's fixtures.
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/text/model_directory.h"
#include "tests/text/tool_output_test_util.h"
#include "text/chat_format.h"
#include "text/detokenizer.h"
#include "text/vendor_texts.h"

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_text::BundledTokenizer;

constexpr char kBos[] = "<｜begin▁of▁sentence｜>";
constexpr char kEos[] = "<｜end▁of▁sentence｜>";
constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";

// Texts of our own in the place of the vendor's.
const ChatFormat& Format() {
  static const ChatFormat* const format = new ChatFormat(
      *ChatFormat::Create(&BundledTokenizer(), {.effort_max = "Try hard.\n\n",
                                                .tools_before = "Tools, <｜DSML｜x>:\n",
                                                .tools_after = "\n</think>.\n",
                                                .response_format = "As:\n"}));
  return *format;
}

std::string Text(const std::vector<ChatMessage>& messages, const ChatRenderOptions& options = {},
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

ChatMessage User(std::string content) { return {.content = std::move(content)}; }
ChatMessage Result(std::string id, std::string content) {
  return {.role = ChatRole::kTool, .content = std::move(content), .tool_call_id = std::move(id)};
}
ChatMessage Calls(std::vector<ToolCall> calls) {
  return {.role = ChatRole::kAssistant, .tool_calls = std::move(calls)};
}

TEST(ChatToolsTest, DeclaresToolsBehindTheSystemMessage) {
  const ChatMessage system = {
      .role = ChatRole::kSystem,
      .content = "S",
      .tools = {R"({"name":"f","parameters":{"x":1.0}})", R"({"name": "é"})"}};
  EXPECT_EQ(Text({system, User("q")}),
            Join({kBos, "S\n\nTools, <｜DSML｜x>:\n", R"({"name": "f", "parameters": {"x": 1.0}})",
                  "\n", R"({"name": "é"})", "\n</think>.\n", kUser, "q", kAssistant, "</think>"}));
}

TEST(ChatToolsTest, ControlTokensOfFixedTextsAreControlTokens) {
  const ChatMessage system = {.role = ChatRole::kSystem, .content = "｜DSML｜", .tools = {"{}"}};
  const std::vector<int32_t> ids = *Format().Render({system}, {});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *Format().tokens().markup), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), Format().tokens().think_end), 1);
}

TEST(ChatToolsTest, DeclareToolsFindsOrMakesTheSystemMessage) {
  std::vector<ChatMessage> messages = {User("q")};
  DeclareTools({}, messages);
  EXPECT_EQ(messages.size(), 1u);
  DeclareTools({"{}"}, messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  DeclareTools({"{}", "{}"}, messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].tools.size(), 2u);
}

TEST(ChatToolsTest, SetResponseFormatFindsOrMakesTheSystemMessage) {
  std::vector<ChatMessage> messages = {User("q")};
  SetResponseFormat("{}", messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, ChatRole::kSystem);
  SetResponseFormat("[]", messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].response_format, "[]");
}

TEST(ChatToolsTest, SaysWhatAModelWithoutTextsLacks) {
  const ChatFormat& plain = testing_text::PlainFormat();
  EXPECT_TRUE(Format().response_formats_available().ok());
  EXPECT_THAT(plain.response_formats_available().ToString(), HasSubstr("the folder encoding"));
  EXPECT_TRUE(plain.effort_available(ReasoningEffort::kHigh).ok());
  EXPECT_THAT(plain.effort_available(ReasoningEffort::kMax).ToString(), HasSubstr("effort max"));
}

TEST(ChatToolsTest, CallsAreCompleteIfEachOfThemIs) {
  const std::string open = "\n\n<\xFF" "tool_calls>\n<\xFF" "invoke name=\"f\">\n</\xFF" "invoke>";
  const auto complete = [](const std::string& text) {
    OutputParser parser(&Format(), ChatMode::kChat, OutputParser::EndToken::kEnds, "call_");
    parser.Push(testing_text::IdsOf(text));
    return parser.calls_complete();
  };
  EXPECT_FALSE(complete("x"));
  EXPECT_TRUE(complete(open));
  const std::string second =
      "\n<\xFF"
      "invoke name=\"g\">\n<\xFF"
      "parameter name=\"a\" string=\"true\">";
  EXPECT_FALSE(complete(open + second));
  EXPECT_TRUE(complete(open + second + "v</\xFF" "parameter>\n</\xFF" "invoke>"));
  EXPECT_FALSE(complete(open + second + "v</\xFF" "parameter>oops"));
}

TEST(ChatToolsTest, RendersResponseFormats) {
  const ChatMessage system = {.role = ChatRole::kSystem,
                              .response_format = R"({"type":"json_object"})"};
  EXPECT_EQ(Text({system}), Join({kBos, "\n\nAs:\n", R"({"type": "json_object"})"}));
  EXPECT_EQ(Text({{.role = ChatRole::kSystem, .content = "S", .response_format = " {} "}}),
            Join({kBos, "S"}));
}

TEST(ChatToolsTest, RendersCalls) {
  EXPECT_EQ(
      Text(
          {User("q"), Calls({{"1", "f", R"({"a":"x\ny","n":[1,{"b":null}]})"}, {"2", "g", "{}"}})}),
      Join(
          {kBos, kUser, "q", kAssistant,
           "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
           "<｜DSML｜parameter name=\"a\" string=\"true\">x\ny</｜DSML｜parameter>\n"
           "<｜DSML｜parameter name=\"n\" string=\"false\">[1, {\"b\": null}]</｜DSML｜parameter>\n"
           "</｜DSML｜invoke>\n<｜DSML｜invoke "
           "name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
           kEos}));
}

TEST(ChatToolsTest, ArgumentsThatAreNoObjectAreOneParameter) {
  for (const std::string arguments : {"", "{\"a\": 1", "[1]", "\"x\""}) {
    EXPECT_THAT(Text({User("q"), Calls({{"1", "f", arguments}})}),
                HasSubstr("<｜DSML｜parameter name=\"arguments\" string=\"true\">" + arguments +
                          "</｜DSML｜parameter>"));
  }
}

TEST(ChatToolsTest, ResultsFollowTheOrderOfTheCalls) {
  const std::vector<ChatMessage> messages = {
      User("q"),        Calls({{"a", "f", "{}"}, {"b", "g", "{}"}, {"c", "h", "{}"}}),
      Result("c", "3"), User("by the way"),
      Result("b", "2"), Result("a", "1")};
  EXPECT_THAT(
      Text(messages),
      HasSubstr(Join({kEos, kUser,
                      "<tool_result>1</tool_result>\n\nby the way\n\n<tool_result>2</tool_result>"
                      "\n\n<tool_result>3</tool_result>",
                      kAssistant})));
}

TEST(ChatToolsTest, ResultsJoinATurnWithATaskAndTextsDoNot) {
  ChatMessage task = User("t");
  task.task = "action";
  EXPECT_EQ(
      Text({task, Result("", "r"), User("u")}),
      Join({kBos, kUser, "t\n\n<tool_result>r</tool_result>", kUser, "u", kAssistant, "</think>"}));
}

TEST(ChatToolsTest, DeclaredToolsKeepAllReasoning) {
  const std::vector<ChatMessage> messages = {
      {.role = ChatRole::kSystem, .tools = {"{}"}},
      User("q1"),
      {.role = ChatRole::kAssistant, .content = "a1", .reasoning_content = "r1"},
      User("q2")};
  EXPECT_THAT(Text(messages, {.mode = ChatMode::kThinking}),
              HasSubstr(Join({kUser, "q1", kAssistant, "<think>r1</think>a1", kEos, kUser, "q2",
                              kAssistant, "<think>"})));
}

TEST(ChatToolsTest, EffortDependsOnTheEncoding) {
  const auto text = [](VendorTexts texts, ReasoningEffort effort) {
    const ChatFormat format = *ChatFormat::Create(&BundledTokenizer(), std::move(texts));
    return Text({User("q")}, {.mode = ChatMode::kThinking, .effort = effort, .add_bos = false},
                format);
  };
  const std::string plain = Join({kUser, "q", kAssistant, "<think>"});
  const VendorTexts preview = {.effort_max = "M"};
  EXPECT_EQ(text(preview, ReasoningEffort::kHigh), plain);
  EXPECT_EQ(text(preview, ReasoningEffort::kMax), "M" + plain);
  VendorTexts refreshed = {.encoding = VendorTexts::Encoding::kRefreshed, .effort_high = "H"};
  EXPECT_EQ(text(refreshed, ReasoningEffort::kLow), plain);
  EXPECT_EQ(text(refreshed, ReasoningEffort::kHigh), "H" + plain);
  EXPECT_THAT(text(refreshed, ReasoningEffort::kMax), HasSubstr("no reasoning effort max"));
  refreshed.effort_high = "";
  EXPECT_THAT(text(refreshed, ReasoningEffort::kHigh), HasSubstr("no reasoning effort high"));
}

TEST(ChatToolsTest, SaysWhatIsWrongWithAMessage) {
  const auto error = [](ChatMessage message) { return Text({User("q"), std::move(message)}); };
  EXPECT_THAT(error({.tools = {"{}"}}), HasSubstr("messages[1]: tools are declared on"));
  EXPECT_THAT(error({.response_format = "{}"}), HasSubstr("messages[1]: a response format"));
  EXPECT_THAT(error({.tool_calls = {{"1", "f", "{}"}}}), HasSubstr("messages[1]: tool calls"));
  EXPECT_THAT(error({.role = ChatRole::kSystem, .tools = {"{}", "{\"a\""}}),
              HasSubstr("messages[1]: tools[1] is not JSON: byte 4"));
  EXPECT_THAT(error({.role = ChatRole::kSystem, .tools = {"[]"}}), HasSubstr("not a JSON object"));
  EXPECT_THAT(error({.role = ChatRole::kSystem, .response_format = "1"}),
              HasSubstr("messages[1]: the response format is not a JSON object"));
  EXPECT_THAT(error(Calls({{"1", "\xFF", "{}"}})), HasSubstr("not valid UTF-8"));
}

TEST(ChatToolsTest, ToolsNeedTheirTexts) {
  EXPECT_TRUE(Format().tools_available().ok());
  const ChatFormat without = *ChatFormat::Create(&BundledTokenizer(), {.tools_before = "x"});
  EXPECT_EQ(without.tools_available().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(without.tools_available().ToString(), HasSubstr("follows the list of tools"));
}

// What the model is shown of its calls is what its own output would be read as.
TEST(ChatToolsTest, RenderedCallsAreReadBack) {
  std::mt19937 random(3);
  static const std::vector<std::string> kValues = {"\"x\"",
                                                   "\"</\"",
                                                   "\"<｜DSML｜parameter\"",
                                                   "1",
                                                   "-2.5",
                                                   "[\"a\", {}]",
                                                   "null",
                                                   "\"\\n\"",
                                                   "\"</｜DSML｜parameter>\"",
                                                   "\"\\u0001\\\"\"",
                                                   "{\"k\": \"</think>\"}",
                                                   "\"\""};
  for (int round = 0; round < 500; ++round) {
    std::vector<ToolCall> calls;
    for (uint32_t n = 1 + testing_text::Below(random, 3); n > 0; --n) {
      std::string arguments = "{";
      for (uint32_t key = testing_text::Below(random, 4); key > 0; --key) {
        arguments += std::string(arguments.size() > 1 ? ", " : "") + "\"k" + std::to_string(key) +
                     "\": " + kValues[testing_text::Below(random, kValues.size())];
      }
      calls.push_back({"call_" + std::to_string(calls.size()), "f", arguments + "}"});
    }
    const std::vector<int32_t> prompt = *Format().Render({User("q")}, {});
    std::vector<int32_t> ids = *Format().Render({User("q"), Calls(calls)}, {});
    ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prompt.size()));
    EXPECT_EQ(testing_text::ParseIds(ids, ChatMode::kChat),
              (testing_text::ParsedReply{"", "", calls}));
  }
}

// ---- The vendor's fixtures: not ours to ship. The variable names the folder that has
// test_input_N.json and test_output_N.txt; the tool texts are found in these.

std::string JsonOf(const boost::json::value& value) { return boost::json::serialize(value); }

std::vector<std::string> FunctionsOf(const boost::json::object& fields) {
  std::vector<std::string> functions;
  if (const boost::json::value* tools = fields.if_contains("tools")) {
    for (const boost::json::value& tool : tools->as_array()) {
      functions.push_back(JsonOf(tool.at("function")));
    }
  }
  return functions;
}

ChatMessage MessageOf(const boost::json::object& fields) {
  const auto text = [](const boost::json::object& object, std::string_view name) {
    const boost::json::value* value = object.if_contains(name);
    return value == nullptr ? std::string() : std::string(value->as_string());
  };
  ChatMessage message = {.role = *ParseChatRole(text(fields, "role")),
                         .content = text(fields, "content"),
                         .reasoning_content = text(fields, "reasoning_content"),
                         .task = text(fields, "task"),
                         .tools = FunctionsOf(fields),
                         .tool_call_id = text(fields, "tool_call_id")};
  if (const boost::json::value* calls = fields.if_contains("tool_calls")) {
    for (const boost::json::value& call : calls->as_array()) {
      const boost::json::object& function = call.at("function").as_object();
      message.tool_calls.push_back(
          {text(call.as_object(), "id"), text(function, "name"), text(function, "arguments")});
    }
  }
  return message;
}

TEST(ChatToolsTest, EqualsTheVendorFixtures) {
  const char* folder = std::getenv("LODESTONE_CHAT_FIXTURES");
  if (folder == nullptr) GTEST_SKIP() << "LODESTONE_CHAT_FIXTURES is not set";
  const auto read = [&](const std::string& name) {
    return testing_text::ReadFile(std::string(folder) + "/test_" + name);
  };
  testing_text::ModelDirectory model;
  model.Write("tests/test_output_1.txt", read("output_1.txt"));
  const ChatFormat format = *ChatFormat::Create(&BundledTokenizer(), LoadVendorTexts(model.path()));
  ASSERT_TRUE(format.tools_available().ok()) << format.tools_available();
  for (const std::string number : {"1", "2", "3", "4"}) {
    const boost::json::value input = boost::json::parse(read("input_" + number + ".json"));
    const bool is_object = input.is_object();
    std::vector<ChatMessage> messages;
    for (const boost::json::value& entry :
         is_object ? input.at("messages").as_array() : input.as_array()) {
      messages.push_back(MessageOf(entry.as_object()));
    }
    if (is_object) DeclareTools(FunctionsOf(input.as_object()), messages);
    const ChatMode mode = number == "4" ? ChatMode::kChat : ChatMode::kThinking;
    EXPECT_EQ(Text(messages, {.mode = mode}, format), read("output_" + number + ".txt")) << number;
  }
}

}  // namespace
}  // namespace lodestone

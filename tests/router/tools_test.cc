// Tools through a whole router: scripted workers emit the token ids of calls.
#include <cstdlib>
#include <filesystem>

#include "tests/router/router_fixture.h"
#include "tests/text/tool_output_test_util.h"
#include "text/detokenizer.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_text::IdsOf;
using testing_text::kD;
using testing_text::kThink;

constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"f","description":"does","parameters":)"
    R"({"type":"object","properties":{"x":{"type":"number","default":1.0,"maximum":1e2}}}}}])";

std::string Markup(std::string text) {
  std::string out;
  for (const char c : text) out += c == '@' ? std::string(1, kD) : std::string(1, c);
  return out;
}
std::string Parameter(const std::string& key, bool is_string, const std::string& value) {
  return Markup("\n<@parameter name=\"" + key + "\" string=\"" + (is_string ? "true" : "false") +
                "\">") +
         value + Markup("</@parameter>");
}
std::string Invoke(const std::string& name, const std::string& parameters) {
  return Markup("\n<@invoke name=\"" + name + "\">") + parameters + Markup("\n</@invoke>");
}
std::string Block(const std::string& invokes) {
  return Markup("\n\n<@tool_calls>") + invokes + Markup("\n</@tool_calls>");
}

class ToolsTest : public RouterFixture {
 protected:
  // A router whose model has tools. The texts are not those of the vendor: what it would do with
  // them is not asked.
  void StartRouterWithTools() {
    std::unique_ptr<ModelInfo> model = ModelInfo::Load(ModelDirectory(), "").value();
    model->chat_format = std::make_unique<const ChatFormat>(
        *ChatFormat::Create(model->tokenizer.get(), Texts()));
    Serve(Router::Start(Config(), std::move(model)));
  }
  static VendorTexts Texts() {
    return {.effort_max = "Think.\n\n",
            .tools_before = "Tools:\n",
            .tools_after = "\nThese.\n",
            .response_format = "As:\n"};
  }
  // Workers that answer with the ids of a text that testing_text writes.
  void StartWorkersThatSay(const std::string& text) { StartWorkersWith(IdsOf(text)); }

  struct Whole {
    std::string content;
    std::string reasoning;
    std::string finish_reason;
    std::vector<ToolCall> tool_calls;
  };
  static Whole Read(const ClientResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    Whole whole;
    if (response.status != 200) return whole;
    const boost::json::value choice = Parse(response.body).at("choices").at(0);
    const boost::json::object& message = choice.at("message").as_object();
    if (message.at("content").is_string()) whole.content = message.at("content").as_string();
    if (const auto* reasoning = message.if_contains("reasoning_content")) {
      whole.reasoning = reasoning->as_string();
    }
    whole.finish_reason = choice.at("finish_reason").as_string();
    if (const auto* calls = message.if_contains("tool_calls")) {
      for (const boost::json::value& call : calls->as_array()) {
        EXPECT_EQ(call.at("type").as_string(), "function");
        const boost::json::value& function = call.at("function");
        whole.tool_calls.push_back({std::string(call.at("id").as_string()),
                                    std::string(function.at("name").as_string()),
                                    std::string(function.at("arguments").as_string())});
      }
    }
    return whole;
  }
  // The whole answer, which the streamed one must equal for any number of tokens in a step.
  Whole Ask(const std::string& extra) {
    const Whole whole = Read(Chat(extra));
    for (const int tokens : {1, 2, 3, 7, 64}) {
      decodes_[0]->SetTokensPerStep(tokens);
      const Streamed streamed = StreamChat(extra);
      EXPECT_EQ(streamed.content, whole.content);
      EXPECT_EQ(streamed.reasoning, whole.reasoning);
      EXPECT_EQ(streamed.finish_reason, whole.finish_reason);
      EXPECT_EQ(streamed.tool_calls.size(), whole.tool_calls.size());
      for (size_t i = 0; i < std::min(streamed.tool_calls.size(), whole.tool_calls.size()); ++i) {
        EXPECT_EQ(streamed.tool_calls[i].name, whole.tool_calls[i].name);
        EXPECT_EQ(streamed.tool_calls[i].arguments, whole.tool_calls[i].arguments);
        EXPECT_THAT(streamed.tool_calls[i].id, testing::StartsWith("call_"));
      }
      num_call_deltas_ = streamed.num_call_deltas;
    }
    decodes_[0]->SetTokensPerStep(1);
    return whole;
  }
  std::string LastPrompt() const {
    return Decode(*Model().tokenizer, prefills_[0]->last_tokens(), AddedTokenText::kKeep);
  }

  int num_call_deltas_ = 0;  // of the last streamed answer
};

TEST_F(ToolsTest, CallsAreTheSameWholeAndStreamed) {
  StartRouterWithTools();
  StartWorkersThatSay("Let me see." +
                      Block(Invoke("f", Parameter("place", true, "Köln 東京 🙂") +
                                            Parameter("days", false, "[3, null]")) +
                            Invoke("now", "")));
  const Whole whole = Ask(kTools);
  EXPECT_EQ(whole.content, "Let me see.");
  EXPECT_EQ(whole.finish_reason, "tool_calls");
  ASSERT_EQ(whole.tool_calls.size(), 2u);
  EXPECT_EQ(whole.tool_calls[0].name, "f");
  EXPECT_EQ(whole.tool_calls[0].arguments, R"({"place": "Köln 東京 🙂", "days": [3, null]})");
  EXPECT_EQ(whole.tool_calls[1].name, "now");
  EXPECT_EQ(whole.tool_calls[1].arguments, "{}");
  EXPECT_NE(whole.tool_calls[0].id, whole.tool_calls[1].id);
}

TEST_F(ToolsTest, ArgumentsArriveWhileTheyAreMade) {
  StartRouterWithTools();
  StartWorkersThatSay(
      Block(Invoke("f", Parameter("a", true, "one two three four five six seven eight") +
                            Parameter("b", false, "12") + Parameter("c", true, "x"))));
  const Streamed streamed = StreamChat(kTools);
  ASSERT_EQ(streamed.tool_calls.size(), 1u);
  EXPECT_GE(streamed.num_call_deltas, 8) << "a long value comes in pieces";
  EXPECT_EQ(streamed.finish_reason, "tool_calls");
  EXPECT_TRUE(streamed.done);
}

TEST_F(ToolsTest, ContentIsNullIfThereAreOnlyCalls) {
  StartRouterWithTools();
  StartWorkersThatSay(Block(Invoke("f", "")));
  const ClientResponse response = Chat(kTools);
  EXPECT_TRUE(Parse(response.body).at("choices").at(0).at("message").at("content").is_null());
}

TEST_F(ToolsTest, ValuesThatLookLikeMarkupSurvive) {
  StartRouterWithTools();
  const std::vector<std::string> values = {"a </",           "<",     "x </｜DSML｜parameter>",
                                           "</think>",       "\n\n<", "<｜DSML｜invoke name=\"g\">",
                                           "</parameter>\n", "\"\\"};
  std::string parameters;
  std::string expected;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string key = "k" + std::to_string(i);
    parameters += Parameter(key, true, values[i]);
    expected += (i == 0 ? "{" : ", ") + JsonQuote(key) + ": " + JsonQuote(values[i]);
  }
  StartWorkersThatSay(Block(Invoke("f", parameters)));
  const Whole whole = Ask(kTools);
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_EQ(whole.tool_calls[0].arguments, expected + "}");
  EXPECT_EQ(whole.content, "");
}

TEST_F(ToolsTest, MalformedBlocksAreContent) {
  StartRouterWithTools();
  StartWorkersThatSay("So" + Markup("\n\n<@tool_calls>\n<@invoke nam=\"f\">") + "x");
  const Whole whole = Ask(kTools);
  EXPECT_EQ(whole.content, "So\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke nam=\"f\">x");
  EXPECT_EQ(whole.finish_reason, "stop");
  EXPECT_TRUE(whole.tool_calls.empty());
}

TEST_F(ToolsTest, ABlockThatTheModelDoesNotFinishIsContent) {
  StartRouterWithTools();
  StartWorkersThatSay("So" + Markup("\n\n<@tool_calls>\n<@inv"));
  EXPECT_EQ(Ask(kTools).content, "So\n\n<｜DSML｜tool_calls>\n<｜DSML｜inv");
}

TEST_F(ToolsTest, ACallThatIsCutOffStaysOpen) {
  StartRouterWithTools();
  const std::string head =
      Markup("\n\n<@tool_calls>\n<@invoke name=\"f\">\n<@parameter name=\"a\" string=\"true\">one");
  StartWorkersThatSay(Block(Invoke("f", Parameter("a", true, "one two"))));
  const size_t tokens = IdsOf(head).size();
  const Whole whole = Ask(std::string(kTools) + ",\"max_tokens\":" + std::to_string(tokens));
  EXPECT_EQ(whole.finish_reason, "length");
  EXPECT_EQ(whole.content, "");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_THAT(whole.tool_calls[0].arguments, testing::StartsWith("{\"a\": \"one"));
  EXPECT_FALSE(IsJson(whole.tool_calls[0].arguments));
}

TEST_F(ToolsTest, ACallThatGoesWrongIsNotReportedAsOne) {
  StartRouterWithTools();
  StartWorkersThatSay(
      Markup("\n\n<@tool_calls>\n<@invoke name=\"f\">") + Parameter("a", true, "x") + "oops");
  const Whole whole = Ask(kTools);
  EXPECT_EQ(whole.finish_reason, "stop");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_FALSE(IsJson(whole.tool_calls[0].arguments));
}

TEST_F(ToolsTest, ACallEndsTheReasoning) {
  StartRouterWithTools();
  StartWorkersThatSay("Hm." + Block(Invoke("f", Parameter("a", false, "1"))));
  const Whole whole = Ask(std::string(kTools) + R"(,"reasoning_effort":"high")");
  EXPECT_EQ(whole.reasoning, "Hm.");
  EXPECT_EQ(whole.content, "");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_EQ(whole.finish_reason, "tool_calls");
}

TEST_F(ToolsTest, ReasoningThenContentThenCalls) {
  StartRouterWithTools();
  StartWorkersThatSay("考える 🙂" + std::string(1, kThink) + "Yes." + Block(Invoke("f", "")));
  const Whole whole = Ask(std::string(kTools) + R"(,"thinking":{"type":"enabled"})");
  EXPECT_EQ(whole.reasoning, "考える 🙂");
  EXPECT_EQ(whole.content, "Yes.");
  EXPECT_EQ(whole.tool_calls.size(), 1u);
}

TEST_F(ToolsTest, WithoutParallelCallsTheFirstIsTheLast) {
  StartRouterWithTools();
  StartWorkersThatSay(Block(Invoke("f", "") + Invoke("g", "")) + "more");
  const Whole whole = Ask(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_EQ(whole.tool_calls[0].name, "f");
  EXPECT_EQ(whole.content, "");
  EXPECT_EQ(whole.finish_reason, "tool_calls");
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(ToolsTest, StopStringsAreLookedForInContentOnly) {
  StartRouterWithTools();
  StartWorkersThatSay("Go on. " + Block(Invoke("f", Parameter("a", true, "END"))) + "then END x");
  const Whole whole = Ask(std::string(kTools) + R"(,"stop":["END"])");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  EXPECT_EQ(whole.tool_calls[0].arguments, R"({"a": "END"})");
  EXPECT_EQ(whole.content, "Go on. then ");
  EXPECT_EQ(whole.finish_reason, "stop");
}

TEST_F(ToolsTest, WithToolChoiceNoneTheModelKnowsOfNoTools) {
  StartRouter();  // without the texts: they are not needed
  StartWorkersThatSay("So" + Block(Invoke("f", "")));
  EXPECT_THAT(Read(Chat()).content, HasSubstr("So"));
  const std::vector<int32_t> prompt = prefills_[0]->last_tokens();
  const Whole whole = Read(Chat(std::string(kTools) + R"(,"tool_choice":"none")"));
  EXPECT_EQ(prefills_[0]->last_tokens(), prompt);
  EXPECT_TRUE(whole.tool_calls.empty());
  EXPECT_EQ(whole.finish_reason, "stop");
}

TEST_F(ToolsTest, AModelWithoutItsTextsRefusesToolsAndSaysWhatIsMissing) {
  StartRouter();
  const auto expect_refused = [this](const std::string& extra, const char* param) {
    const ClientResponse response = Chat(extra);
    EXPECT_EQ(response.status, 400) << extra;
    const boost::json::value error = Parse(response.body).at("error");
    EXPECT_EQ(error.at("code").as_string(), "unsupported_parameter");
    EXPECT_EQ(error.at("param").as_string(), param);
    EXPECT_THAT(std::string(error.at("message").as_string()), HasSubstr("the folder encoding"));
  };
  expect_refused(kTools, "tools");
  expect_refused(R"("response_format":{"type":"json_object"})", "response_format");
  expect_refused(R"("reasoning_effort":"max")", "reasoning_effort");
  const ClientResponse history =
      Fetch(http_, "POST", "/v1/chat/completions",
            R"({"model":"needle-tiny","messages":[{"role":"user","content":"q"},)"
            R"({"role":"tool","tool_call_id":"1","content":"r"}]})");
  EXPECT_EQ(history.status, 400);
  EXPECT_THAT(history.body, HasSubstr("messages[1]"));
}

TEST_F(ToolsTest, SchemasReachThePromptAsTheyWereWritten) {
  StartRouterWithTools();
  StartWorkers("ok");
  EXPECT_EQ(
      Read(Chat(std::string(kTools) + R"(,"response_format":{"type":"json_object"})")).content,
      "ok");
  const std::string prompt = LastPrompt();
  EXPECT_THAT(prompt, HasSubstr("\n\nTools:\n{\"name\": \"f\", \"description\": \"does\", "));
  EXPECT_THAT(prompt, HasSubstr("\"default\": 1.0, \"maximum\": 100.0}}}}\nThese.\n"));
  EXPECT_THAT(prompt, HasSubstr("\n\nAs:\n{\"type\": \"json_object\"}"));
}

TEST_F(ToolsTest, CallsAndResultsOfTheHistoryAreRendered) {
  StartRouterWithTools();
  StartWorkers("ok");
  const ClientResponse response = Fetch(
      http_, "POST", "/v1/chat/completions",
      std::string(R"({"model":"needle-tiny","messages":[{"role":"user","content":"q"},)") +
          R"({"role":"assistant","content":null,"tool_calls":[)"
          R"({"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},)"
          R"({"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},)"
          R"({"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"2"}]},)"
          R"({"role":"tool","tool_call_id":"a","content":"1"}],)" +
          kTools + "}");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(LastPrompt(),
              HasSubstr("<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" "
                        "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>"));
  EXPECT_THAT(LastPrompt(), HasSubstr("<｜User｜><tool_result>1</tool_result>\n\n"
                                      "<tool_result>2</tool_result><｜Assistant｜></think>"));
}

TEST_F(ToolsTest, LogprobsOfCallsNameEveryToken) {
  StartRouterWithTools();
  StartWorkersThatSay(Block(Invoke("f", "")));
  const ClientResponse response = Chat(std::string(kTools) + R"(,"logprobs":true)");
  const boost::json::value choice = Parse(response.body).at("choices").at(0);
  EXPECT_EQ(choice.at("logprobs").at("content").as_array().size(), script_.output.size());
}

// The prompts of the vendor's fixtures, from the API's messages to the worker's token ids.
TEST_F(ToolsTest, PromptsEqualTheVendorFixture) {
  const char* folder = std::getenv("LODESTONE_CHAT_FIXTURES");
  if (folder == nullptr) GTEST_SKIP() << "LODESTONE_CHAT_FIXTURES is not set";
  namespace fs = std::filesystem;
  const fs::path model = fs::path(testing::TempDir()) / "needle-tiny";
  fs::remove_all(model);
  fs::create_directories(model / "encoding");
  for (const char* name : {"tokenizer.json", "config.json", "generation_config.json"}) {
    fs::copy_file(fs::path(ModelDirectory()) / name, model / name);
  }
  fs::copy_file(fs::path(folder) / "test_output_1.txt", model / "encoding" / "test_output_1.txt");
  RouterConfig config = Config();
  config.model = model.string();
  StartRouter(config);
  StartWorkers("ok");
  const std::string input =
      testing_text::ReadFile(std::string(folder) + "/test_input_1.json");
  const size_t brace = input.find('{');
  const ClientResponse response =
      Fetch(http_, "POST", "/v1/chat/completions",
            R"({"model":"needle-tiny","thinking":{"type":"enabled"},)" + input.substr(brace + 1));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(LastPrompt(), testing_text::ReadFile(std::string(folder) + "/test_output_1.txt"));
}

}  // namespace
}  // namespace lodestone

#include "router/openai_schema.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using testing::HasSubstr;

SchemaRules Rules() {
  return SchemaRules{.model_names = {"m"},
                     .vocab_size = 1024,
                     .default_temperature = 0,
                     .default_top_p = 1,
                     .strict = false};
}

std::string Chat(const std::string& extra) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" + extra + "}";
}
std::string Completion(const std::string& extra) {
  return R"({"model":"m","prompt":"hi",)" + extra + "}";
}

struct BadCase {
  const char* name;
  bool is_chat;
  std::string body;
  int status;
  std::string code;
  std::string param;
  std::string message;  // part of it
};

class BadRequestTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadRequestTest, IsRefusedWithItsParameter) {
  const BadCase& bad = GetParam();
  const ApiOr<ApiRequest> result =
      bad.is_chat ? ParseChatRequest(bad.body, Rules()) : ParseCompletionRequest(bad.body, Rules());
  ASSERT_FALSE(result.ok()) << bad.body;
  EXPECT_EQ(result.error().http_status, bad.status);
  EXPECT_EQ(result.error().code, bad.code) << result.error().message;
  EXPECT_EQ(result.error().param, bad.param) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(bad.message));
}

std::vector<BadCase> BadCases() {
  const auto chat = [](const char* name, const std::string& extra, const char* code,
                       const char* param, const char* message) {
    return BadCase{name, true, Chat(extra), 400, code, param, message};
  };
  const auto text = [](const char* name, const std::string& extra, const char* code,
                       const char* param, const char* message) {
    return BadCase{name, false, Completion(extra), 400, code, param, message};
  };
  std::string deep = "\"metadata\":";
  for (int i = 0; i < 70; ++i) deep += "[";
  for (int i = 0; i < 70; ++i) deep += "]";
  std::string tools = R"("tools":[)";
  for (int i = 0; i < 257; ++i) {
    tools += std::string(i > 0 ? "," : "") + R"({"type":"function","function":{"name":"f"}})";
  }
  tools += "]";
  std::string bias = "\"logit_bias\":{";
  for (int i = 0; i < 1025; ++i) {
    bias += (i > 0 ? "," : "") + ("\"" + std::to_string(i)) + "\":1";
  }
  return {
      {"MalformedJson", true, R"({"model":)", 400, "invalid_value", "model", "ends too early"},
      {"NotAnObject", true, "[1]", 400, "invalid_type", "", "an array"},
      {"TextAfterTheEnd", true, Chat("\"seed\":1") + "x", 400, "invalid_value", "",
       "after its end"},
      {"Empty", true, "", 400, "invalid_value", "", "ends too early"},
      {"UnknownModel", true, R"({"model":"x","messages":[]})", 404, "model_not_found", "model",
       "\"x\""},
      {"NoModel", true, R"({"messages":[]})", 400, "invalid_value", "model", "required"},
      {"NoMessages", true, R"({"model":"m","messages":[]})", 400, "invalid_value", "messages",
       "at least"},
      {"MessageType", true, R"({"model":"m","messages":[3]})", 400, "invalid_type", "messages[0]",
       "number"},
      {"Role", true, R"({"model":"m","messages":[{"role":"boss","content":"x"}]})", 400,
       "invalid_value", "messages[0].role", "boss"},
      {"ContentType", true, R"({"model":"m","messages":[{"role":"user","content":4}]})", 400,
       "invalid_type", "messages[0].content", "a number"},
      {"ImagePart", true,
       R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]})", 400,
       "unsupported_content_part", "messages[0].content[0].type", "image_url"},
      {"LoneSurrogate", true, R"({"model":"m","messages":[{"role":"user","content":"a\ud800b"}]})",
       400, "invalid_value", "messages[0].content", "surrogate"},
      {"LoneLowSurrogate", true, R"({"model":"m","messages":[{"role":"user","content":"\udc00"}]})",
       400, "invalid_value", "messages[0].content", "surrogate"},
      {"SurrogateInPrompt", false, R"({"model":"m","prompt":["ok","\ud83d"]})", 400,
       "invalid_value", "prompt[1]", "surrogate"},
      {"NotUtf8", true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
       400, "invalid_value", "messages[0].content", "JSON"},
      {"DuplicateKey", true, Chat(R"("seed":1,"seed":2)"), 400, "invalid_value", "seed", "twice"},
      chat("TooDeep", deep, "invalid_value", "metadata", "deeper than 64"),
      chat("MaxTokensZero", R"("max_tokens":0)", "invalid_value", "max_tokens",
           "is 0, expected an integer of at least 1"),
      chat("MaxTokensNegative", R"("max_tokens":-5)", "invalid_value", "max_tokens", "is -5"),
      chat("MaxTokensFraction", R"("max_tokens":1.5)", "invalid_type", "max_tokens", "integer"),
      chat("MaxTokensHuge", R"("max_tokens":1e18)", "invalid_type", "max_tokens", "1E18"),
      chat("MaxTokensString", R"("max_tokens":"5")", "invalid_type", "max_tokens", "a string"),
      chat("MaxTokensTwice", R"("max_tokens":5,"max_completion_tokens":6)", "invalid_value",
           "max_tokens", "6"),
      chat("Temperature", R"("temperature":2.5)", "invalid_value", "temperature", "2.5"),
      chat("TemperatureInfinite", R"("temperature":1e999)", "invalid_value", "temperature",
           "expected"),
      chat("TopP", R"("top_p":-0.1)", "invalid_value", "top_p", "-0.1"),
      chat("SeedType", R"("seed":true)", "invalid_type", "seed", "a boolean"),
      chat("SeedTooLarge", R"("seed":9223372036854775808)", "invalid_type", "seed", "integer"),
      chat("StreamType", R"("stream":"yes")", "invalid_type", "stream", "a string"),
      chat("StreamOptions", R"("stream_options":{"include_usage":true})", "invalid_value",
           "stream_options", "stream"),
      chat("N", R"("n":9)", "invalid_value", "n", "n is 9, expected an integer from 1 to 8"),
      chat("NZero", R"("n":0)", "invalid_value", "n", "n is 0"),
      chat("ToolWithoutFunction", R"("tools":[{"type":"function"}])", "invalid_value",
           "tools[0].function", "required"),
      chat("ToolType", R"("tools":[{"type":"web"}])", "unsupported_parameter", "tools[0].type",
           "web"),
      chat("ToolNoObject", R"("tools":[3])", "invalid_type", "tools[0]", "a number"),
      chat("ToolsNoArray", R"("tools":{})", "invalid_type", "tools", "an object"),
      chat("ToolName", R"("tools":[{"type":"function","function":{"name":"a\">b"}}])",
           "invalid_value", "tools[0].function.name", "letters"),
      chat("ToolParameters",
           R"("tools":[{"type":"function","function":{"name":"f","parameters":1}}])",
           "invalid_type", "tools[0].function.parameters", "a number"),
      chat("StrictTool", R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])",
           "unsupported_parameter", "tools[0].function.strict", "strict"),
      chat("TooManyTools", tools, "invalid_value", "tools", "257 entries, limit is 256"),
      chat("LargeTool",
           R"("tools":[{"type":"function","function":{"name":"f","description":")" +
               std::string(256 << 10, 'x') + R"("}}])",
           "invalid_value", "tools[0].function", "limit is 262144"),
      chat("ToolChoice", R"("tool_choice":"required")", "unsupported_parameter", "tool_choice",
           "required"),
      chat("NamedToolChoice", R"("tool_choice":{"type":"function","function":{"name":"f"}})",
           "unsupported_parameter", "tool_choice", "cannot be made"),
      chat("OddToolChoice", R"("tool_choice":"any")", "invalid_value", "tool_choice", "any"),
      {"ToolMessageWithoutId", true, R"({"model":"m","messages":[{"role":"tool","content":"x"}]})",
       400, "invalid_value", "messages[0].tool_call_id", "required"},
      {"FunctionRole", true, R"({"model":"m","messages":[{"role":"function","content":"x"}]})", 400,
       "unsupported_parameter", "messages[0].role", "tool"},
      {"CallOfAUser", true,
       R"({"model":"m","messages":[{"role":"user","content":"x","tool_calls":[{"id":"1"}]}]})", 400,
       "unsupported_parameter", "messages[0].tool_calls", "not supported"},
      {"CallWithoutArguments", true,
       R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]}]})",
       400, "invalid_value", "messages[0].tool_calls[0].function.arguments", "required"},
      {"CallArgumentsObject", true,
       R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}]}]})",
       400, "invalid_type", "messages[0].tool_calls[0].function.arguments", "an object"},
      chat("ResponseFormat", R"("response_format":{"type":"yaml"})", "invalid_value",
           "response_format.type", "yaml"),
      chat("ResponseSchema", R"("response_format":{"type":"json_schema"})", "invalid_value",
           "response_format.json_schema", "required"),
      chat("StrictSchema",
           R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true}})",
           "unsupported_parameter", "response_format.json_schema.strict", "not constrained"),
      chat("Audio", R"("audio":{})", "unsupported_parameter", "audio", "audio"),
      chat("TopLogprobsAlone", R"("top_logprobs":3)", "invalid_value", "top_logprobs", "logprobs"),
      chat("TopLogprobs", R"("logprobs":true,"top_logprobs":21)", "invalid_value", "top_logprobs",
           "21"),
      chat("BiasToken", R"("logit_bias":{"1024":1})", "invalid_value", "logit_bias.1024", "1024"),
      chat("BiasKey", R"("logit_bias":{"x":1})", "invalid_value", "logit_bias.x", "x"),
      chat("BiasValue", R"("logit_bias":{"1":101})", "invalid_value", "logit_bias.1", "101"),
      chat("BiasMany", bias + "}", "invalid_value", "logit_bias", "1025"),
      chat("StopToken", R"("stop_token_ids":[1024])", "invalid_value", "stop_token_ids[0]", "1024"),
      chat("StopTokenNegative", R"("stop_token_ids":[3,-1])", "invalid_value", "stop_token_ids[1]",
           "-1"),
      chat("StopMany", R"("stop":["a","b","c","d","e"])", "invalid_value", "stop", "5"),
      chat("StopEmpty", R"("stop":[""])", "invalid_value", "stop[0]", "empty"),
      chat("StopType", R"("stop":[1])", "invalid_type", "stop[0]", "a number"),
      chat("StopLong", "\"stop\":\"" + std::string(257, 'a') + "\"", "invalid_value", "stop",
           "257"),
      chat("Effort", R"("reasoning_effort":"huge")", "invalid_value", "reasoning_effort", "huge"),
      chat("Contradiction", R"("reasoning_effort":"none","thinking":{"type":"enabled"})",
           "invalid_value", "thinking", "contradicts"),
      {"PromptMissing", false, R"({"model":"m"})", 400, "invalid_value", "prompt", "required"},
      {"PromptEmpty", false, R"({"model":"m","prompt":""})", 400, "invalid_value", "prompt",
       "empty"},
      {"PromptEmptyIds", false, R"({"model":"m","prompt":["a",[]]})", 400, "invalid_value",
       "prompt[1]", "empty"},
      {"PromptIdTooLarge", false, R"({"model":"m","prompt":[1,1024]})", 400, "invalid_value",
       "prompt[1]", "1024"},
      {"PromptIdNegative", false, R"({"model":"m","prompt":[-1]})", 400, "invalid_value",
       "prompt[0]", "-1"},
      {"PromptIdFraction", false, R"({"model":"m","prompt":[1.5]})", 400, "invalid_type",
       "prompt[0]", "token id"},
      {"PromptMixed", false, R"({"model":"m","prompt":[1,"a"]})", 400, "invalid_type", "prompt[1]",
       "token id"},
      text("ZeroTokensWithoutEcho", R"("max_tokens":0)", "invalid_value", "max_tokens",
           "without echo"),
      text("Logprobs", R"("logprobs":6)", "invalid_value", "logprobs", "6"),
      text("BestOf", R"("best_of":2)", "unsupported_parameter", "best_of", "2"),
      text("Suffix", R"("suffix":"x")", "unsupported_parameter", "suffix", "x"),
  };
}

INSTANTIATE_TEST_SUITE_P(Cases, BadRequestTest, testing::ValuesIn(BadCases()),
                         [](const auto& test) { return test.param.name; });

TEST(OpenAiSchemaTest, ReadsEveryFieldOfAChatRequest) {
  const ApiOr<ApiRequest> result = ParseChatRequest(
      R"({"model":"m","messages":[{"role":"system","content":"be brief","name":null},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":"c","reasoning_content":"r"},{"role":"user","content":"d"}],
          "max_completion_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"seed":-3,
          "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,"ignore_eos":true,
          "min_tokens":2,"stop":["x","y"],"stop_token_ids":[4],"logit_bias":{"9":-100},
          "logprobs":true,"top_logprobs":3,"stream":true,
          "stream_options":{"include_usage":true,"continuous_usage_stats":true,"other":1},
          "n":1,"tools":null,"tool_choice":"none","response_format":{"type":"text"},
          "user":"u","metadata":{},"reasoning_effort":"high","new_thing":1})",
      Rules());
  ASSERT_TRUE(result.ok()) << result.error().message;
  const ApiRequest& request = result.value();
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(request.messages[1].content, "a\n\nb");
  EXPECT_EQ(request.messages[2].reasoning_content, "r");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.seed, -3);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.min_new_tokens, 2);
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<int32_t>{4}));
  ASSERT_EQ(request.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request.sampling.logit_bias[0], (std::pair<int32_t, float>(9, -100.0F)));
  EXPECT_TRUE(request.sampling.logprobs);
  EXPECT_EQ(request.sampling.top_logprobs, 3);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage);
  EXPECT_EQ(request.render.mode, ChatMode::kThinking);
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"new_thing"}));
}

TEST(OpenAiSchemaTest, ReadsToolsAndTheirHistory) {
  const ApiOr<ApiRequest> result = ParseChatRequest(
      R"({"model":"m","messages":[{"role":"user","content":"q"},
          {"role":"assistant","content":null,"tool_calls":[
            {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},
          {"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"r"}]}],
          "tools":[{"type":"function","function": {"name":"f",  "x":1.50}}],
          "tool_choice":"auto","parallel_tool_calls":false,"n":2,
          "response_format":{"type":"json_schema", "json_schema":{"name":"s"}}})",
      Rules());
  ASSERT_TRUE(result.ok()) << result.error().message;
  const ApiRequest& request = result.value();
  EXPECT_TRUE(request.calls_tools && request.has_response_format);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.num_choices, 2);
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(request.messages[0].tools, (std::vector<std::string>{R"({"name":"f",  "x":1.50})"}));
  EXPECT_EQ(request.messages[0].response_format,
            R"({"type":"json_schema", "json_schema":{"name":"s"}})");
  ASSERT_EQ(request.messages[2].tool_calls.size(), 1u);
  EXPECT_EQ(request.messages[2].tool_calls[0].arguments, R"({"x": 1})");
  EXPECT_EQ(request.messages[3].role, ChatRole::kTool);
  EXPECT_EQ(request.messages[3].tool_call_id, "1");
  EXPECT_EQ(request.messages[3].content, "r");
}

TEST(OpenAiSchemaTest, ToolChoiceNoneDeclaresNoTools) {
  const ApiOr<ApiRequest> result = ParseChatRequest(
      Chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")"),
      Rules());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result.value().calls_tools);
  EXPECT_EQ(result.value().messages.size(), 1u);
}

TEST(OpenAiSchemaTest, EffortsHaveTheNamesOfTheApi) {
  const std::map<std::string, ReasoningEffort> efforts = {
      {"minimal", ReasoningEffort::kLow}, {"low", ReasoningEffort::kLow},
      {"medium", ReasoningEffort::kHigh}, {"high", ReasoningEffort::kHigh},
      {"max", ReasoningEffort::kMax},     {"xhigh", ReasoningEffort::kMax}};
  for (const auto& [name, effort] : efforts) {
    const ApiOr<ApiRequest> result =
        ParseChatRequest(Chat("\"reasoning_effort\":\"" + name + "\""), Rules());
    ASSERT_TRUE(result.ok()) << name;
    EXPECT_EQ(result.value().render.effort, effort) << name;
    EXPECT_EQ(result.value().render.mode, ChatMode::kThinking);
  }
}

TEST(OpenAiSchemaTest, NullMeansAbsent) {
  const ApiOr<ApiRequest> result = ParseCompletionRequest(
      Completion(R"("max_tokens":null,"stop":null,"logprobs":null,"seed":null,"temperature":null)"),
      Rules());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result.value().max_tokens.has_value());
  EXPECT_FALSE(result.value().logprobs);
  EXPECT_EQ(result.value().sampling.temperature, 0);
}

TEST(OpenAiSchemaTest, LargeIntegersStayWhole) {
  for (const int64_t max_tokens : {int64_t{2147483648}, int64_t{1000000000000000000}}) {
    const ApiOr<ApiRequest> result =
        ParseChatRequest(Chat("\"max_tokens\":" + std::to_string(max_tokens)), Rules());
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result.value().max_tokens, max_tokens);  // refused against the context, with both
  }
}

TEST(OpenAiSchemaTest, ZeroTopPTakesTheMostLikelyToken) {
  const ApiOr<ApiRequest> result = ParseChatRequest(Chat(R"("top_p":0)"), Rules());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value().sampling.top_k, 1);
}

TEST(OpenAiSchemaTest, StrictModeRefusesUnknownFields) {
  SchemaRules rules = Rules();
  rules.strict = true;
  const ApiOr<ApiRequest> result = ParseChatRequest(Chat(R"("new_thing":1)"), rules);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().param, "new_thing");
}

TEST(OpenAiSchemaTest, SurrogatePairsAreCharacters) {
  const ApiOr<ApiRequest> result =
      ParseCompletionRequest(R"({"model":"m","prompt":"\ud83d\ude00"})", Rules());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(std::get<std::string>(result.value().prompts[0]), "\xF0\x9F\x98\x80");
}

}  // namespace
}  // namespace lodestone

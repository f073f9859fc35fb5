#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using RouterTest = RouterFixture;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";

TEST_F(RouterTest, AnswersAChatRequestInOneBody) {
  StartRouter();
  StartWorkers(kAnswer);
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  const boost::json::value body = Parse(response.body);
  EXPECT_EQ(body.at("object").as_string(), "chat.completion");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "stop");
  EXPECT_TRUE(body.at("choices").at(0).at("logprobs").is_null());
  EXPECT_TRUE(body.at("choices").at(0).at("message").at("refusal").is_null());
  EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<size_t>(), script_.output.size());
  EXPECT_TRUE(response.headers.contains("x-request-id"));
  EXPECT_TRUE(response.headers.contains("openai-processing-ms"));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(RouterTest, StreamsAChatRequestToItsEnd) {
  StartRouter();
  StartWorkers(kAnswer);
  const Streamed streamed = StreamChat("\"stream_options\":{\"include_usage\":true}");
  EXPECT_EQ(streamed.content, kAnswer);
  EXPECT_EQ(streamed.finish_reason, "stop");
  EXPECT_TRUE(streamed.done);
  ASSERT_GE(streamed.events.size(), 4u);
  const boost::json::value first = Parse(streamed.events.front());
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("role").as_string(), "assistant");
  EXPECT_TRUE(first.at("usage").is_null());
  const boost::json::value usage = Parse(streamed.events[streamed.events.size() - 2]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens").to_number<size_t>(), script_.output.size());
}

TEST_F(RouterTest, CompletionsTakeTextAndTokenIds) {
  StartRouter();
  StartWorkers(kAnswer);
  for (const char* prompt : {R"("hello")", R"(["hello"])", "[5,6,7]", "[[5,6,7]]"}) {
    const ClientResponse response =
        Fetch(http_, "POST", "/v1/completions",
              std::string(R"({"model":"needle-tiny","max_tokens":100,"prompt":)") + prompt + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const boost::json::value body = Parse(response.body);
    EXPECT_EQ(body.at("object").as_string(), "text_completion");
    EXPECT_EQ(body.at("choices").at(0).at("text").as_string(), kAnswer);
  }
  EXPECT_EQ(prefills_[0]->last_tokens(), (std::vector<int32_t>{5, 6, 7}));
}

TEST_F(RouterTest, SeveralPromptsGiveSeveralChoices) {
  StartRouter();
  StartWorkers(kAnswer);
  const ClientResponse response = Fetch(
      http_, "POST", "/v1/completions",
      R"({"model":"needle-tiny","max_tokens":3,"echo":true,"prompt":["hello","the river"]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::value body = Parse(response.body);
  ASSERT_EQ(body.at("choices").as_array().size(), 2u);
  EXPECT_EQ(body.at("choices").at(1).at("index").to_number<int>(), 1);
  EXPECT_THAT(std::string(body.at("choices").at(1).at("text").as_string()),
              testing::StartsWith("the river"));
  EXPECT_EQ(body.at("choices").at(1).at("finish_reason").as_string(), "length");
  EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<int>(), 6);
}

TEST_F(RouterTest, EchoWithoutNewTokensReturnsThePrompt) {
  StartRouter();
  StartWorkers(kAnswer);
  const ClientResponse response =
      Fetch(http_, "POST", "/v1/completions",
            R"({"model":"needle-tiny","max_tokens":0,"echo":true,"prompt":"the river"})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(Parse(response.body).at("choices").at(0).at("text").as_string(), "the river");
}

TEST_F(RouterTest, StopStringAcrossTokensEndsTheAnswerAndTheLease) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->SetTokenPause(std::chrono::milliseconds(20));  // slower than the cancel
  const std::string stop = R"("stop":["4-st"])";
  const ClientResponse whole = Chat(stop);
  EXPECT_EQ(ContentOf(whole), "The secret code for the river is north-123");
  EXPECT_EQ(Parse(whole.body).at("choices").at(0).at("finish_reason").as_string(), "stop");
  const Streamed streamed = StreamChat(stop);
  EXPECT_EQ(streamed.content, "The secret code for the river is north-123");
  EXPECT_EQ(streamed.finish_reason, "stop");
  EXPECT_TRUE(decodes_[0]->WaitIdle());
  EXPECT_GE(decodes_[0]->num_cancelled(), 2);
}

TEST_F(RouterTest, TokensAfterAStopStringAreNotCounted) {
  StartRouter();
  StartWorkers(kAnswer);
  const std::string stop = R"("stop":["4-st"])";
  const auto completion_tokens = [](const ClientResponse& response) {
    return Parse(response.body).at("usage").at("completion_tokens").as_int64();
  };
  const int64_t one_by_one = completion_tokens(Chat(stop));
  decodes_[0]->SetTokensPerStep(100);
  EXPECT_EQ(completion_tokens(Chat(stop)), one_by_one);
  EXPECT_LT(one_by_one, static_cast<int64_t>(script_.output.size()));
}

TEST_F(RouterTest, MaxTokensEndsWithLength) {
  StartRouter();
  StartWorkers(kAnswer);
  for (const int max_tokens : {1, 2, 5}) {
    const ClientResponse response = Chat("\"max_tokens\":" + std::to_string(max_tokens));
    const boost::json::value body = Parse(response.body);
    EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "length");
    EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<int>(), max_tokens);
  }
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(RouterTest, LogprobsNameEveryToken) {
  StartRouter();
  StartWorkers("north stone");
  const ClientResponse chat = Chat(R"("logprobs":true)");
  const boost::json::value choice = Parse(chat.body).at("choices").at(0);
  const boost::json::array& content = choice.at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), script_.output.size());
  std::string joined;
  for (const boost::json::value& token : content)
    joined += std::string(token.at("token").as_string());
  EXPECT_EQ(joined, "north stone");
  EXPECT_EQ(content.at(0).at("logprob").to_number<double>(), -0.25);
  EXPECT_EQ(content.at(0).at("bytes").at(0).to_number<int>(), 'n');
  const ClientResponse text =
      Fetch(http_, "POST", "/v1/completions",
            R"({"model":"needle-tiny","max_tokens":100,"logprobs":0,"prompt":"x"})");
  const boost::json::value logprobs = Parse(text.body).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens").as_array().size(), script_.output.size());
  EXPECT_EQ(logprobs.at("text_offset").at(0).to_number<int>(), 0);
}

TEST_F(RouterTest, ThinkingModePutsReasoningApart) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText("I recall it.");
  const std::vector<int32_t> answer = Model().tokenizer->EncodeText("north");
  script_.output.push_back(Model().chat_format->tokens().think_end);
  script_.output.insert(script_.output.end(), answer.begin(), answer.end());
  AddPrefill();
  AddDecode();
  WaitReady();
  const ClientResponse response = Chat(R"("thinking":{"type":"enabled"})");
  const boost::json::value message = Parse(response.body).at("choices").at(0).at("message");
  EXPECT_EQ(message.at("reasoning_content").as_string(), "I recall it.");
  EXPECT_EQ(message.at("content").as_string(), "north");
  EXPECT_GT(Parse(response.body)
                .at("usage")
                .at("completion_tokens_details")
                .at("reasoning_tokens")
                .to_number<int>(),
            2);
}

TEST_F(RouterTest, SilentStreamGetsKeepAliveChunks) {
  RouterConfig config = Config();
  config.sse_keepalive_after = std::chrono::milliseconds(50);
  config.sse_keepalive_every = std::chrono::milliseconds(50);
  StartRouter(config);
  StartWorkers("north");
  prefills_[0]->SetRunPause(std::chrono::milliseconds(300));
  const Streamed streamed = StreamChat();
  EXPECT_EQ(streamed.content, "north");
  EXPECT_TRUE(streamed.done);
  const boost::json::value first = Parse(streamed.events.front());
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("content").as_string(), "");
  EXPECT_FALSE(first.at("choices").at(0).at("delta").as_object().contains("role"));
}

TEST_F(RouterTest, UnknownPathNamesNearOnes) {
  StartRouter();
  const ClientResponse response = Fetch(http_, "POST", "/v1/chat/completion", "{}");
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.body, HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(ErrorCode(response), "unknown_endpoint");
  const ClientResponse method = Fetch(http_, "GET", "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
}

TEST_F(RouterTest, TheModelIsAsLongAsTheLargestDecodeWorkerHolds) {
  const auto length = [this] {
    return Parse(Fetch(http_, "GET", "/v1/models/needle-tiny").body).at("max_model_len").as_int64();
  };
  StartRouter();
  EXPECT_EQ(length(), Model().max_context_tokens);
  script_.max_context_tokens = 12'288;
  StartWorkers("north");
  EXPECT_EQ(length(), 12'288);
  decodes_[0]->Kill();
  EXPECT_TRUE(Eventually([&] { return length() == Model().max_context_tokens; }));
}

TEST_F(RouterTest, ListsTheModel) {
  StartRouter();
  const boost::json::value list = Parse(Fetch(http_, "GET", "/v1/models").body);
  EXPECT_EQ(list.at("data").at(0).at("id").as_string(), "needle-tiny");
  EXPECT_EQ(Fetch(http_, "GET", "/v1/models/needle-tiny").status, 200);
  EXPECT_EQ(Fetch(http_, "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(Fetch(http_, "GET", "/livez").status, 200);
  EXPECT_EQ(Fetch(http_, "GET", "/version").status, 200);
}

TEST_F(RouterTest, KeepsConnectionsAndEchoesSaneRequestIds) {
  StartRouter();
  StartWorkers("north");
  HttpClient client(http_);
  for (int i = 0; i < 3; ++i) {
    client.Send("POST", "/v1/chat/completions", ChatBody(), "x-request-id: my-id.7\r\n");
    const ClientResponse response = client.Receive();
    EXPECT_EQ(ContentOf(response), "north");
    EXPECT_EQ(response.headers.at("x-request-id"), "my-id.7");
  }
}

TEST_F(RouterTest, LimitsAnswerBeforeTheyAllocate) {
  RouterConfig config = Config();
  config.max_body.bytes = 4096;
  StartRouter(config);
  HttpClient large(http_);
  large.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n");
  const ClientResponse too_large = large.Receive();
  EXPECT_EQ(too_large.status, 413);
  EXPECT_EQ(ErrorCode(too_large), "request_too_large");
  HttpClient headers(http_);
  headers.SendRaw("GET / HTTP/1.1\r\nX: " + std::string(20000, 'a') + "\r\n\r\n");
  EXPECT_EQ(headers.Receive().status, 431);
  HttpClient garbage(http_);
  garbage.SendRaw("\x16\x03\x01 not http\r\n\r\n");
  EXPECT_EQ(garbage.Receive().status, 400);
  EXPECT_EQ(Fetch(http_, "GET", "/livez").status, 200);
}

TEST_F(RouterTest, TakesChunkedBodies) {
  StartRouter();
  StartWorkers("north");
  HttpClient client(http_);
  const std::string body = ChatBody();
  client.SendRaw(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char byte : body) client.SendRaw(std::string("1\r\n") + byte + "\r\n");
  client.SendRaw("0\r\n\r\n");
  EXPECT_EQ(ContentOf(client.Receive()), "north");
}

}  // namespace
}  // namespace lodestone

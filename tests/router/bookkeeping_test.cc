// What the router counts and whom it tells: first-token times, gauges, the other leg of a request.
#include <grpcpp/grpcpp.h>

#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using BookkeepingTest = RouterFixture;
using std::chrono::milliseconds;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Queue, prefill and all that lies between: not what a worker thinks that it took.
TEST_F(BookkeepingTest, TimeToFirstTokenIsThatOfTheClient) {
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(250));
  HttpClient client(http_);
  const auto start = std::chrono::steady_clock::now();
  client.Send("POST", "/v1/chat/completions", ChatBody("\"stream\":true"));
  EXPECT_EQ(client.ReceiveHead().status, 200);
  Streamed streamed;
  while (streamed.content.empty()) Absorb(client.ReadEvent().value(), streamed);
  const double seen = SecondsSince(start);
  while (const std::optional<std::string> event = client.ReadEvent()) Absorb(*event, streamed);
  EXPECT_TRUE(streamed.done);
  EXPECT_EQ(Metric("lodestone_time_to_first_token_seconds_count"), 1);
  const double counted = Metric("lodestone_time_to_first_token_seconds_sum");
  EXPECT_GE(counted, 0.25);
  EXPECT_LE(counted, seen);
}

TEST_F(BookkeepingTest, GaugesAreZeroAfterEveryKindOfEnd) {
  RouterConfig config = Config();
  config.max_attempts = 1;
  StartRouter(config);
  StartWorkers(kAnswer);
  EXPECT_EQ(Chat().status, 200);
  EXPECT_TRUE(StreamChat("\"max_tokens\":2").done);
  EXPECT_TRUE(StreamChat(R"("stop":["4-st"])").done);
  EXPECT_EQ(Chat("\"max_tokens\":-1").status, 400);
  prefills_[0]->FailRuns(1, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Chat().status, 502);
  decodes_[0]->FailStreams(1, grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(StreamChat().error);
  for (const int run_pause : {10'000, 0}) {  // leaves in prefill, then in decode
    prefills_[0]->SetRunPause(milliseconds(run_pause));
    decodes_[0]->SetTokenPause(milliseconds(200));
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions", ChatBody("\"stream\":true"));
    ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_running_requests") == 1; }));
    client.Close();
    ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_running_requests") == 0; }));
  }
  EXPECT_EQ(Metric("lodestone_router_queue_depth"), 0);
  EXPECT_TRUE(Eventually([&]() { return Metric("lodestone_router_open_streams") == 0; }));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(BookkeepingTest, ChecksOfHealthMoveNoGauge) {
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(10'000));
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody());
  ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_running_requests") == 1; }));
  for (const char* path : {"/readyz", "/health", "/livez", "/metrics", "/v1/models"}) {
    EXPECT_EQ(Fetch(http_, "GET", path).status, 200) << path;
    EXPECT_EQ(Metric("lodestone_router_running_requests"), 1) << path;
    EXPECT_EQ(Metric("lodestone_router_open_streams"), 1) << path;
  }
}

// On an idle machine it takes milliseconds; tests share theirs.
TEST_F(BookkeepingTest, AnErrorOfPrefillReleasesTheLeaseAtOnce) {
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->FailRuns(1, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Chat().status, 400);
  EXPECT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 0; }, 0.5));
}

TEST_F(BookkeepingTest, ADecodeWorkerThatDiesEndsThePrefillAtOnce) {
  RouterConfig config = Config();
  config.max_attempts = 1;
  StartRouter(config);
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(20'000));
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody());
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  decodes_[0]->Kill();
  EXPECT_TRUE(Eventually([&]() { return prefills_[0]->num_cancelled() == 1; }, 2));
  EXPECT_GE(client.Receive().status, 500);
}

// A worker may send any number of tokens at once; the client's texts are the same.
TEST_F(BookkeepingTest, ReasoningAndContentDoNotDependOnTheSizeOfSteps) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText("I recall 深度 it. ");
  const std::vector<int32_t> answer = Model().tokenizer->EncodeText("north 🌸 stone");
  script_.output.push_back(Model().chat_format->tokens().think_end);
  script_.output.insert(script_.output.end(), answer.begin(), answer.end());
  AddPrefill();
  AddDecode();
  WaitReady();
  for (const int step : {1, 2, 3, 5, 8, 13, 64}) {
    decodes_[0]->SetTokensPerStep(step);
    const Streamed streamed = StreamChat(R"("thinking":{"type":"enabled"})");
    std::string reasoning;
    for (const std::string& event : streamed.events) {
      if (event == "[DONE]") continue;
      const boost::json::value chunk = Parse(event);
      for (const boost::json::value& choice : chunk.at("choices").as_array()) {
        const boost::json::object& delta = choice.at("delta").as_object();
        const auto* text = delta.if_contains("reasoning_content");
        if (text != nullptr && text->is_string()) reasoning += std::string(text->as_string());
      }
    }
    EXPECT_EQ(reasoning, "I recall 深度 it. ") << step << " tokens a step";
    EXPECT_EQ(streamed.content, "north 🌸 stone") << step << " tokens a step";
  }
}

}  // namespace
}  // namespace lodestone

// Several choices of one request (n), and prompts with log-probabilities (echo).
#include <map>
#include <set>

#include "router/openai_reply.h"
#include "router/request_builder.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ChoicesTest : public RouterFixture {
 protected:
  static std::vector<int32_t> Ids(const std::string& text) {
    return Model().tokenizer->EncodeText(text);
  }
  void StartThree(int num_prefill = 1, int num_decode = 1, const RouterConfig& config = Config()) {
    StartRouter(config);
    script_.fork_outputs = {Ids("second answer, longer"), Ids("3")};
    StartWorkers("first answer", num_prefill, num_decode);
    runs_before_ = TotalRuns();
  }
  int64_t TotalRuns() const {
    int64_t runs = 0;
    for (const auto& prefill : prefills_) runs += prefill->num_runs();
    return runs;
  }
  int64_t RunsSinceStart() const { return TotalRuns() - runs_before_; }

  static std::vector<std::string> Contents(const ClientResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<std::string> contents;
    if (response.status != 200) return contents;
    const boost::json::value body = Parse(response.body);
    for (const boost::json::value& choice : body.at("choices").as_array()) {
      EXPECT_EQ(choice.at("index").to_number<size_t>(), contents.size());
      contents.emplace_back(choice.at("message").at("content").as_string());
    }
    return contents;
  }
  struct StreamedChoices {
    std::map<int, std::string> contents;
    std::map<int, std::string> finish_reasons;
    std::map<int, int> roles;
    boost::json::value usage;
    bool done = false;
    bool error = false;
  };
  StreamedChoices Stream(const std::string& extra) {
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions",
                ChatBody(R"("stream":true,"stream_options":{"include_usage":true},)" + extra));
    EXPECT_EQ(client.ReceiveHead().status, 200);
    StreamedChoices result;
    while (const std::optional<std::string> event = client.ReadEvent()) {
      if (*event == "[DONE]") {
        result.done = true;
        continue;
      }
      const boost::json::value chunk = Parse(*event);
      if (chunk.as_object().contains("error")) {
        result.error = true;
        continue;
      }
      if (!chunk.at("usage").is_null()) result.usage = chunk.at("usage");
      for (const boost::json::value& choice : chunk.at("choices").as_array()) {
        const int index = choice.at("index").to_number<int>();
        EXPECT_FALSE(result.finish_reasons.contains(index)) << "a chunk after the last one";
        const boost::json::object& delta = choice.at("delta").as_object();
        if (delta.contains("role")) ++result.roles[index];
        if (const auto* content = delta.if_contains("content")) {
          result.contents[index] += std::string(content->as_string());
        }
        if (choice.at("finish_reason").is_string()) {
          result.finish_reasons[index] = std::string(choice.at("finish_reason").as_string());
        }
      }
    }
    return result;
  }
  // After it has sent `tokens` of the only request.
  void KillTheServingDecode(int64_t tokens) {
    std::vector<int64_t> sent_before;
    for (const auto& decode : decodes_) sent_before.push_back(decode->num_tokens_sent());
    ASSERT_TRUE(Eventually([&]() {
      for (size_t i = 0; i < decodes_.size(); ++i) {
        if (decodes_[i]->num_tokens_sent() < sent_before[i] + tokens) continue;
        decodes_[i]->Kill();
        return true;
      }
      return false;
    }));
  }
  bool AllIdle() const {
    return std::ranges::all_of(decodes_, [](const auto& decode) { return decode->WaitIdle(); });
  }

  int64_t runs_before_ = 0;
};

TEST_F(ChoicesTest, OnePrefillBeginsThemAll) {
  StartThree();
  const ClientResponse response = Chat(R"("n":3,"seed":7)");
  EXPECT_THAT(Contents(response), ElementsAre("first answer", "second answer, longer", "3"));
  EXPECT_EQ(RunsSinceStart(), 1);
  EXPECT_EQ(prefills_[0]->last_num_forks(), 2);
  EXPECT_EQ(prefills_[0]->last_seed(), 7u);
  const boost::json::value usage = Parse(response.body).at("usage");
  const size_t tokens =
      script_.output.size() + script_.fork_outputs[0].size() + script_.fork_outputs[1].size();
  EXPECT_EQ(usage.at("completion_tokens").to_number<size_t>(), tokens);
  EXPECT_EQ(usage.at("prompt_tokens").to_number<size_t>(), prefills_[0]->last_tokens().size());
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, ChunksCarryTheirIndex) {
  StartThree();
  const StreamedChoices streamed = Stream(R"("n":3)");
  EXPECT_EQ(streamed.contents, (std::map<int, std::string>{
                                   {0, "first answer"}, {1, "second answer, longer"}, {2, "3"}}));
  EXPECT_EQ(streamed.finish_reasons,
            (std::map<int, std::string>{{0, "stop"}, {1, "stop"}, {2, "stop"}}));
  EXPECT_EQ(streamed.roles, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_TRUE(streamed.done);
  EXPECT_EQ(streamed.usage.at("prompt_tokens").to_number<size_t>(),
            prefills_[0]->last_tokens().size());
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, NoGapIsCountedBeforeTheFirstTokenOfAChoice) {
  StartThree();
  const StreamedChoices streamed = Stream(R"("n":3)");
  const double tokens = streamed.usage.at("completion_tokens").to_number<double>();
  EXPECT_EQ(Metric("lodestone_inter_token_seconds_count"), tokens - 3);
  EXPECT_EQ(Metric("lodestone_time_to_first_token_seconds_count"), 1);
}

TEST_F(ChoicesTest, AChoiceThatEndsAtOnceDoesNotEndTheOthers) {
  StartRouter();
  script_.fork_outputs = {{}, Ids("three words here")};
  StartWorkersWith({});  // the first choice and the second end with their first token
  EXPECT_THAT(Contents(Chat(R"("n":3)")), ElementsAre("", "", "three words here"));
  const StreamedChoices streamed = Stream(R"("n":3)");
  EXPECT_EQ(streamed.contents.at(2), "three words here");
  EXPECT_EQ(streamed.finish_reasons.size(), 3u);
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, AStopStringEndsOneChoice) {
  StartThree();
  EXPECT_THAT(Contents(Chat(R"("n":3,"stop":["fir","answer, l"])")),
              ElementsAre("", "second ", "3"));
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, EveryCountOfNewTokensIsExact) {
  StartThree();
  for (int max_tokens = 1; max_tokens <= 8; ++max_tokens) {
    const ClientResponse response =
        Chat(R"("n":3,"ignore_eos":true,"max_tokens":)" + std::to_string(max_tokens));
    const boost::json::value body = Parse(response.body);
    EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<int>(), 3 * max_tokens);
    for (const boost::json::value& choice : body.at("choices").as_array()) {
      EXPECT_EQ(choice.at("finish_reason").as_string(), "length");
    }
  }
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, PromptsAndChoicesAreNumberedTogether) {
  StartThree();
  const ClientResponse response = Fetch(
      http_, "POST", "/v1/completions",
      R"({"model":"needle-tiny","max_tokens":100,"n":3,"prompt":["a","b"]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::value body = Parse(response.body);
  const boost::json::array& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 6u);
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i].at("index").to_number<size_t>(), i);
    EXPECT_EQ(choices[i].at("text").as_string(), choices[i % 3].at("text").as_string());
  }
  EXPECT_EQ(RunsSinceStart(), 2);
}

TEST_F(ChoicesTest, WhenTheDecodeWorkerDiesEachGoesOnFromItsTokens) {
  StartThree(1, 2);
  for (const auto& decode : decodes_) decode->SetTokenPause(std::chrono::milliseconds(40));
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody(R"("n":3)"));
  KillTheServingDecode(4);
  EXPECT_THAT(Contents(client.Receive()),
              ElementsAre("first answer", "second answer, longer", "3"));
  EXPECT_GT(RunsSinceStart(), 1);
  EXPECT_EQ(prefills_[0]->last_num_forks(), 0);
  EXPECT_GT(prefills_[0]->last_num_generated(), 0);
}

// They run already: no limit of those who wait is for them.
TEST_F(ChoicesTest, AFullLineEndsNoChoiceThatGoesOn) {
  RouterConfig config = Config();
  config.queue_size = 1;
  StartThree(1, 2, config);
  for (const auto& decode : decodes_) decode->SetTokenPause(std::chrono::milliseconds(40));
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody(R"("n":3)"));
  KillTheServingDecode(4);
  EXPECT_THAT(Contents(client.Receive()),
              ElementsAre("first answer", "second answer, longer", "3"));
}

TEST_F(ChoicesTest, WhenThePrefillWorkerDiesTheyBeginTogetherAgain) {
  StartThree(2, 1);
  for (const auto& prefill : prefills_) prefill->FailRuns(1, 14);
  EXPECT_THAT(Contents(Chat(R"("n":3)")),
              ElementsAre("first answer", "second answer, longer", "3"));
  EXPECT_EQ(RunsSinceStart(), 3);
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, ALostHandOffIsMadeAgainForEach) {
  RouterConfig config = Config();
  config.handoff_timeout = std::chrono::milliseconds(300);
  StartRouter(config);
  script_.fork_outputs = {Ids("second answer, longer"), Ids("three")};
  StartWorkers("first answer", 2);
  for (const auto& prefill : prefills_) prefill->LoseHandOffs(1);
  const std::vector<std::string> contents = Contents(Chat(R"("n":3)"));
  EXPECT_THAT(contents, ElementsAre("first answer", "second answer, longer", "three"));
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, AClientThatLeavesFreesAllLeases) {
  StartThree();
  decodes_[0]->SetTokenPause(std::chrono::milliseconds(50));
  {
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions",
                ChatBody(R"("n":8,"stream":true,"ignore_eos":true,"max_tokens":2000)"));
    ASSERT_EQ(client.ReceiveHead().status, 200);
    ASSERT_TRUE(client.ReadEvent().has_value());
  }
  EXPECT_TRUE(AllIdle());
}

TEST_F(ChoicesTest, MoreThanAnyWorkerHoldsIsRefused) {
  StartRouter();
  script_.cache_capacity_bytes = 10'000;  // 1000 a sequence and 256 a page
  StartWorkers("north");
  EXPECT_EQ(Chat(R"("n":4,"max_tokens":100)").status, 200);
  const ClientResponse response = Chat(R"("n":8,"max_tokens":1000)");
  EXPECT_EQ(response.status, 400) << response.body;
  EXPECT_EQ(Parse(response.body).at("error").at("param").as_string(), "n");
  EXPECT_THAT(response.body, HasSubstr("n is 8"));
}

TEST(ChoiceSeedTest, TheFirstChoiceHasTheSeedOfTheRequest) {
  EXPECT_EQ(ChoiceSeed(42, 0), 42u);
  std::set<uint64_t> seeds;
  for (const uint64_t seed : {0u, 1u, 42u}) {
    for (int choice = 0; choice < 8; ++choice) seeds.insert(ChoiceSeed(seed, choice));
  }
  EXPECT_EQ(seeds.size(), 24u);
}

class EchoTest : public ChoicesTest {
 protected:
  boost::json::value Complete(const std::string& extra, int status = 200) {
    const ClientResponse response =
        Fetch(http_, "POST", "/v1/completions", R"({"model":"needle-tiny",)" + extra + "}");
    EXPECT_EQ(response.status, status) << response.body;
    return Parse(response.body);
  }
  // The streamed choice put together.
  struct Streamed {
    std::string text;
    boost::json::array tokens, token_logprobs, top_logprobs, text_offset;
    std::string finish_reason;
  };
  Streamed StreamCompletion(const std::string& extra) {
    HttpClient client(http_);
    client.Send("POST", "/v1/completions",
                R"({"model":"needle-tiny","stream":true,)" + extra + "}");
    EXPECT_EQ(client.ReceiveHead().status, 200);
    Streamed result;
    const auto append = [](boost::json::array& to, const boost::json::value& from) {
      to.insert(to.end(), from.as_array().begin(), from.as_array().end());
    };
    while (const std::optional<std::string> event = client.ReadEvent()) {
      if (*event == "[DONE]") continue;
      EXPECT_LT(event->size(), 64u << 10);
      const boost::json::value choice = Parse(*event).at("choices").at(0);
      result.text += std::string(choice.at("text").as_string());
      if (choice.at("finish_reason").is_string()) {
        result.finish_reason = choice.at("finish_reason").as_string();
      }
      if (!choice.at("logprobs").is_object()) continue;
      append(result.tokens, choice.at("logprobs").at("tokens"));
      append(result.token_logprobs, choice.at("logprobs").at("token_logprobs"));
      append(result.top_logprobs, choice.at("logprobs").at("top_logprobs"));
      append(result.text_offset, choice.at("logprobs").at("text_offset"));
    }
    return result;
  }
};

TEST_F(EchoTest, ScoresAPromptWithoutNewTokens) {
  StartRouter();
  StartWorkers("north");
  const std::vector<int32_t> prompt = Ids("the river is wide");
  const boost::json::value body =
      Complete(R"("prompt":"the river is wide","echo":true,"logprobs":2,"max_tokens":0)");
  const boost::json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text").as_string(), "the river is wide");
  EXPECT_EQ(choice.at("finish_reason").as_string(), "length");
  const boost::json::value& logprobs = choice.at("logprobs");
  ASSERT_EQ(logprobs.at("tokens").as_array().size(), prompt.size());
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  int64_t offset = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    EXPECT_EQ(logprobs.at("text_offset").at(i).as_int64(), offset);
    offset += static_cast<int64_t>(logprobs.at("tokens").at(i).as_string().size());
    if (i == 0) continue;
    EXPECT_EQ(logprobs.at("token_logprobs").at(i).to_number<double>(),
              -0.125 * static_cast<double>(i));
    EXPECT_EQ(logprobs.at("top_logprobs").at(i).as_object().size(), 2u);
  }
  EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<int>(), 0);
  EXPECT_EQ(body.at("usage").at("prompt_tokens").to_number<size_t>(), prompt.size());
  EXPECT_TRUE(AllIdle());
}

TEST_F(EchoTest, NewTokensFollowThePrompt) {
  StartRouter();
  StartWorkers(" north");
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += "the river é ";
  const std::string extra =
      R"("echo":true,"logprobs":1,"max_tokens":50,"prompt":")" + prompt + "\"";
  const boost::json::value body = Complete(extra);
  const boost::json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text").as_string(), prompt + " north");
  const boost::json::object& logprobs = choice.at("logprobs").as_object();
  const size_t prompt_tokens = Ids(prompt).size();
  ASSERT_EQ(logprobs.at("tokens").as_array().size(), prompt_tokens + script_.output.size());
  EXPECT_EQ(logprobs.at("text_offset").at(prompt_tokens).to_number<size_t>(),
            static_cast<size_t>(CountCharacters(prompt)));
  const Streamed streamed = StreamCompletion(extra);
  EXPECT_EQ(streamed.text, prompt + " north");
  EXPECT_EQ(streamed.finish_reason, "stop");
  EXPECT_EQ(streamed.tokens, logprobs.at("tokens").as_array());
  EXPECT_EQ(streamed.token_logprobs, logprobs.at("token_logprobs").as_array());
  EXPECT_EQ(streamed.top_logprobs, logprobs.at("top_logprobs").as_array());
  EXPECT_EQ(streamed.text_offset, logprobs.at("text_offset").as_array());
}

TEST_F(EchoTest, EveryChoiceHasThePrompt) {
  StartThree();
  const boost::json::value body =
      Complete(R"("prompt":"go ","echo":true,"logprobs":0,"n":3,"max_tokens":50)");
  const char* const texts[] = {"go first answer", "go second answer, longer", "go 3"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(body.at("choices").at(i).at("text").as_string(), texts[i]);
    EXPECT_TRUE(
        body.at("choices").at(i).at("logprobs").at("token_logprobs").at(0).is_null());
  }
  EXPECT_EQ(RunsSinceStart(), 1);
}

TEST_F(EchoTest, WithoutLogprobsOnlyTheTextIsEchoed) {
  StartRouter();
  StartWorkers("north");
  for (const char* max_tokens : {"0", "50"}) {
    const std::string extra =
        std::string(R"("prompt":"go ","echo":true,"max_tokens":)") + max_tokens;
    const std::string text = std::string("go ") + (max_tokens[0] == '0' ? "" : "north");
    EXPECT_EQ(Complete(extra).at("choices").at(0).at("text").as_string(), text);
    EXPECT_EQ(StreamCompletion(extra).text, text);
  }
}

TEST_F(EchoTest, ALongPromptIsEchoedInPartsOfWholeCharacters) {
  StartRouter();
  StartWorkers("north");
  std::string prompt;
  while (prompt.size() < 60'000) prompt += "the river 深度 ";
  EXPECT_EQ(StreamCompletion(R"("echo":true,"max_tokens":50,"prompt":")" + prompt + "\"").text,
            prompt + "north");
}

TEST_F(EchoTest, APromptIsScoredOnceThoughTheDecodeWorkerDies) {
  StartRouter();
  StartWorkers("north stone and river", 1, 2);
  for (const auto& decode : decodes_) decode->SetTokenPause(std::chrono::milliseconds(40));
  const std::string body =
      R"({"model":"needle-tiny","prompt":"go on","echo":true,"logprobs":0,"max_tokens":50})";
  HttpClient client(http_);
  client.Send("POST", "/v1/completions", body);
  KillTheServingDecode(3);
  const ClientResponse response = client.Receive();
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::value choice = Parse(response.body).at("choices").at(0);
  EXPECT_EQ(choice.at("text").as_string(), "go onnorth stone and river");
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(),
            Ids("go on").size() + script_.output.size());
}

}  // namespace
}  // namespace lodestone

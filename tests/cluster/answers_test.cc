// A cluster of real processes answers as one process does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <boost/json.hpp>

#include "cli/openai_client.h"
#include "recall/needle.h"
#include "router/request_builder.h"
#include "tests/cluster/running_cluster.h"
#include "text/detokenizer.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kTimeout(120);

// Runs a program to its end; its exit and both outputs.
struct Finished {
  std::string exit;
  std::string output;
};
Finished RunProgram(std::vector<std::string> argv) {
  const std::string out = ::testing::TempDir() + "/program.out";
  const std::string err = ::testing::TempDir() + "/program.err";
  std::filesystem::remove(err);
  auto child =
      ChildProcess::Start({.argv = std::move(argv), .stdout_path = out, .stderr_path = err});
  if (!child.ok()) return {child.status().ToString(), ""};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  std::optional<std::string> exit;
  while (!(exit = child->PollExit()) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {exit.value_or("no end in time"), LastLines(err, 1000) + LastLines(out, 1000)};
}

class AnswersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto cluster = RunningCluster::Start({"--max-context", "12288"});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::move(*cluster);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override { ASSERT_NE(cluster_, nullptr) << "the cluster did not start"; }

  static std::unique_ptr<RunningCluster> cluster_;
};
std::unique_ptr<RunningCluster> AnswersTest::cluster_;

TEST_F(AnswersTest, TokensAndLogprobsEqualThoseOfOneProcess) {
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "12288";
  const std::vector<GenerateInput> inputs = RandomInputs({1, 127, 129, 513, 1100}, 16, 7);
  const auto single = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(single.ok()) << single.status();
  const GenerateClient client(cluster_->router_address());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto answer = client.Generate(inputs[i], kTimeout);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(DifferenceOf(answer->output, single->at(i)), "") << inputs[i].tokens.size();
    EXPECT_NE(answer->prefill_worker, answer->decode_worker);
  }
}

TEST_F(AnswersTest, ChatOverHttpFindsTheNeedle) {
  const auto tokenizer = Tokenizer::Load(std::string(kNeedleTiny) + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const auto lexicon = LexiconForModel(kNeedleTiny);
  ASSERT_TRUE(lexicon.ok());
  const NeedleGenerator generator(*lexicon, TokenCounter{.tokenizer = &*tokenizer});
  const auto prompt = generator.Make({.prompt_tokens = 900, .depth = 0.3, .seed = 11});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const OpenAiClient client(HttpClient(*ParseHttpUrl(cluster_->url())));
  std::string streamed;
  const auto answer = client.AskStreamed("needle-tiny", prompt->content, 64, kTimeout,
                                         [&](std::string_view text) { streamed += text; });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(streamed, prompt->answer);
  EXPECT_EQ(answer->finish_reason, "stop");
  EXPECT_EQ(answer->prompt_tokens, prompt->prompt_tokens);
  const auto whole = client.Ask("needle-tiny", prompt->content, 64, kTimeout);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->text, prompt->answer);
}

// What /v1/completions says about the ids of a prompt; `fields` are more members of the body.
boost::json::value Complete(const std::string& url, const std::vector<int32_t>& prompt,
                            const std::string& fields) {
  const HttpClient client(*ParseHttpUrl(url));
  const auto reply = client.Post("/v1/completions",
                                 absl::StrCat(R"({"model":"needle-tiny","prompt":[)",
                                              absl::StrJoin(prompt, ","), "],", fields, "}"),
                                 kTimeout);
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 200) << reply->body;
  return boost::json::parse(reply->body);
}

void ExpectLogprobs(const boost::json::value& choice, const std::vector<GeneratedToken>& tokens,
                    size_t first) {
  const boost::json::array& logprobs = choice.at("logprobs").at("token_logprobs").as_array();
  ASSERT_EQ(logprobs.size(), first + tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(logprobs[first + i].to_number<float>(), tokens[i].logprob) << "token " << i;
  }
}

// Choices of one request equal requests of their own with the derived seeds; penalties, bias and
// seed mean over HTTP what they mean in one process.
TEST_F(AnswersTest, ChoicesOverHttpEqualThoseOfOneProcess) {
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "12288";
  const std::vector<GenerateInput> prompts = RandomInputs({5, 300}, 12, 3);
  std::vector<GenerateInput> inputs;
  for (const GenerateInput& prompt : prompts) {
    for (int choice = 0; choice < 4; ++choice) {
      GenerateInput input = prompt;
      input.sampling.temperature = 1.2;
      input.sampling.top_p = 0.9;
      input.sampling.seed = ChoiceSeed(77, choice);
      input.sampling.ignore_eos = true;
      input.sampling.repetition_penalty = 1.3;
      input.sampling.presence_penalty = 0.4;
      input.sampling.frequency_penalty = 0.3;
      input.sampling.logit_bias = {{20, 3.0f}, {21, -100.0f}};
      inputs.push_back(input);
    }
  }
  const auto single = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(single.ok()) << single.status();
  const auto tokenizer = Tokenizer::Load(std::string(kNeedleTiny) + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const std::string fields =
      R"("n":4,"seed":77,"max_tokens":12,"temperature":1.2,"top_p":0.9,"ignore_eos":true,)"
      R"("repetition_penalty":1.3,"presence_penalty":0.4,"frequency_penalty":0.3,)"
      R"("logit_bias":{"20":3,"21":-100},"logprobs":0)";
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    const boost::json::value body =
        Complete(cluster_->url(), prompts[prompt].tokens, fields);
    EXPECT_EQ(body.at("usage").at("prompt_tokens").to_number<size_t>(),
              prompts[prompt].tokens.size());
    EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<int>(), 48);
    std::set<std::string> texts;
    for (size_t choice = 0; choice < 4; ++choice) {
      const std::vector<GeneratedToken>& expected = single->at(prompt * 4 + choice).tokens;
      std::vector<int32_t> ids;
      for (const GeneratedToken& token : expected) ids.push_back(token.id);
      const boost::json::value& got = body.at("choices").at(choice);
      EXPECT_EQ(got.at("text").as_string(), Decode(*tokenizer, ids)) << choice;
      ExpectLogprobs(got, expected, 0);
      texts.insert(std::string(got.at("text").as_string()));
    }
    EXPECT_EQ(texts.size(), 4u) << "choices differ";
  }
}

TEST_F(AnswersTest, EchoScoresAPromptAsItsPrefixesWould) {
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "12288";
  const GenerateInput whole = RandomInputs({200}, 3, 5).front();
  std::vector<GenerateInput> inputs = {whole};
  const std::vector<size_t> lengths = {1, 15, 16, 17, 128, 199};
  for (const size_t length : lengths) {
    GenerateInput prefix = whole;
    prefix.tokens.resize(length);
    prefix.sampling.max_new_tokens = 1;
    prefix.sampling.logit_bias = {{whole.tokens[length], 100.0f}};
    inputs.push_back(prefix);
  }
  const auto single = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(single.ok()) << single.status();
  const boost::json::value body =
      Complete(cluster_->url(), whole.tokens,
               R"("echo":true,"logprobs":1,"max_tokens":3,"temperature":0,"ignore_eos":true)");
  const boost::json::value& choice = body.at("choices").at(0);
  ExpectLogprobs(choice, single->front().tokens, whole.tokens.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const GeneratedToken& next = single->at(i + 1).tokens.front();
    ASSERT_EQ(next.id, whole.tokens[lengths[i]]);
    EXPECT_EQ(choice.at("logprobs").at("token_logprobs").at(lengths[i]).to_number<float>(),
              next.logprob)
        << lengths[i];
  }
  const boost::json::value scored = Complete(
      cluster_->url(), whole.tokens, R"("echo":true,"logprobs":1,"max_tokens":0,"n":2)");
  for (size_t i = 0; i < 2; ++i) {
    const boost::json::array& again =
        scored.at("choices").at(i).at("logprobs").at("token_logprobs").as_array();
    ASSERT_EQ(again.size(), whole.tokens.size());
    for (size_t token = 0; token < again.size(); ++token) {
      EXPECT_EQ(again[token], choice.at("logprobs").at("token_logprobs").at(token));
    }
  }
}

TEST_F(AnswersTest, CurlGetsAnAnswer) {
  const Finished curl = RunProgram(
      {"/usr/bin/env", "curl", "-sS", cluster_->url() + "/v1/chat/completions", "-H",
       "Content-Type: application/json", "-d",
       R"({"model":"needle-tiny","max_tokens":32,"messages":[{"role":"user","content":"The secret code for Vera Nolan is ZEBRA-4492-OMEGA.\nWhat is the secret code for Vera Nolan?"}]})"});
  EXPECT_EQ(curl.exit, "exit code 0");
  EXPECT_THAT(curl.output, HasSubstr("ZEBRA-4492-OMEGA")) << curl.output;
}

TEST_F(AnswersTest, OfficialOpenAiPackageWorks) {
  // Installs the pinned package if it is missing; 77 says that it cannot.
  const Finished run =
      RunProgram({LODESTONE_SOURCE_DIR "/tests/api/openai/run.sh", cluster_->url(), "needle-tiny"});
  if (run.exit == "exit code 77") GTEST_SKIP() << run.output;
  EXPECT_EQ(run.exit, "exit code 0") << run.output;
}

TEST_F(AnswersTest, AskStreamsAnAnswer) {
  const Finished ask = RunProgram(
      {LODESTONE_BIN_DIR "/lodestone", "ask", "--url", cluster_->url(),
       "The secret code for Vera Nolan is ZEBRA-4492-OMEGA.\nWhat is the secret code for Vera "
       "Nolan?"});
  EXPECT_EQ(ask.exit, "exit code 0");
  EXPECT_THAT(ask.output, HasSubstr("ZEBRA-4492-OMEGA"));
}

TEST_F(AnswersTest, SweepCountsTheNeedlesItFinds) {
  const Finished sweep =
      RunProgram({LODESTONE_BIN_DIR "/lodestone", "sweep", "--url", cluster_->url(), "--tokenizer",
                  kNeedleTiny, "--lengths", "300,900", "--depths", "0,1", "--require-all"});
  EXPECT_EQ(sweep.exit, "exit code 0") << sweep.output;
  EXPECT_TRUE(sweep.output.ends_with("4 of 4 found\n")) << sweep.output;
}

TEST(VerifyCommandTest, PrintsNoDifferencesAndExits0) {
  const Finished verify = RunProgram({LODESTONE_BIN_DIR "/lodestone", "verify", "--model",
                                      kNeedleTiny, "--lengths", "1..4,127..129,260,513", "--batch",
                                      "4", "--chunk-tokens", "128", "--max-context", "1024"});
  EXPECT_EQ(verify.exit, "exit code 0") << verify.output;
  EXPECT_TRUE(verify.output.ends_with("\n0 differences\n")) << verify.output;
}

TEST(VerifyCommandTest, ClusterWithAnotherIndexKeyFormatDiffers) {
  // The yardstick must be able to fail: a cluster under fp4 keys against one process under bf16.
  auto cluster = RunningCluster::Start({"--index-k", "fp4", "--max-context", "2048"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const Finished verify = RunProgram(
      {LODESTONE_BIN_DIR "/lodestone", "verify", "--model", kNeedleTiny, "--lengths", "1500",
       "--index-k", "bf16", "--max-context", "2048", "--grpc", (*cluster)->router_address()});
  EXPECT_EQ(verify.exit, "exit code 1") << verify.output;
  EXPECT_TRUE(verify.output.ends_with("\n1 differences\n")) << verify.output;
}

}  // namespace
}  // namespace lodestone

// A cluster of real processes answers as one process does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "cli/openai_client.h"
#include "recall/needle.h"
#include "tests/cluster/running_cluster.h"

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

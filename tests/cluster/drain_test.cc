// Workers that are drained, one by one, under load: no request fails, and each leaves with exit
// code 0 when what ran on it has ended.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "base/config.h"
#include "base/mutex.h"
#include "cli/worker_admin.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr std::chrono::seconds kTimeout(120);
constexpr int kStreams = 8;

int Rounds() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 20 : 1; }

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

// A command of the `lodestone` tool, to its end: what it printed and how it ended.
struct Ran {
  std::string exit;
  std::string output;
};
Ran RunTool(std::vector<std::string> arguments) {
  const std::string path = testing::TempDir() + "/lodestone_drain_test_" + std::to_string(getpid());
  arguments.insert(arguments.begin(), LODESTONE_BIN_DIR "/lodestone");
  auto process = ChildProcess::Start(
      {.argv = arguments, .stdout_path = path + ".out", .stderr_path = path + ".out"});
  if (!process.ok()) return {.exit = process.status().ToString(), .output = ""};
  const auto deadline = steady_clock::now() + kTimeout;
  while (steady_clock::now() < deadline) {
    if (const auto exit = process->PollExit()) return {*exit, ReadAll(path + ".out")};
    std::this_thread::sleep_for(milliseconds(10));
  }
  return {.exit = "not in time", .output = ReadAll(path + ".out")};
}

// Clients that ask one question after the other until they are told to end.
class Load {
 public:
  Load(const RunningCluster& cluster, std::vector<GenerateInput> inputs,
       std::vector<GenerateOutput> expected)
      : client_(cluster.router_address()),
        inputs_(std::move(inputs)),
        expected_(std::move(expected)) {
    for (int i = 0; i < kStreams; ++i) threads_.emplace_back([this] { AskUntilEnd(); });
  }
  ~Load() { End(); }

  std::vector<std::string> End() {
    end_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    MutexLock lock(&mutex_);
    return problems_;
  }
  int64_t answers() const { return answers_; }

 private:
  void AskUntilEnd() {
    while (!end_) {
      const size_t i = next_++ % inputs_.size();
      const auto answer = client_.Generate(inputs_[i], kTimeout);
      const std::string problem =
          answer.ok() ? DifferenceOf(answer->output, expected_[i]) : answer.status().ToString();
      ++answers_;
      if (problem.empty()) continue;
      MutexLock lock(&mutex_);
      problems_.push_back(problem);
    }
  }

  const GenerateClient client_;
  const std::vector<GenerateInput> inputs_;
  const std::vector<GenerateOutput> expected_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> answers_{0};
  std::atomic<bool> end_{false};
  Mutex mutex_;
  std::vector<std::string> problems_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

TEST(DrainTest, ARollingRestartOfEveryWorkerFailsNoRequest) {
  auto cluster = RunningCluster::Start({"--prefill", "2", "--decode", "2", "--max-context", "1024",
                                        "--max-sequences", "16", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<GenerateInput> inputs =
      RandomInputs({20, 70, 130, 260, 300, 410, 500, 600}, 32, 7);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  Load load(**cluster, inputs, *expected);
  for (int round = 0; round < Rounds(); ++round) {
    const auto before = (*cluster)->Members();
    const int64_t answers = load.answers();
    const Ran drain = RunTool({"drain", "--role", "all", "--rolling", "--url", (*cluster)->url()});
    EXPECT_EQ(drain.exit, "exit code 0") << drain.output << (*cluster)->Output();
    for (const RunningMember& member : before) {
      if (member.name == "router") continue;
      EXPECT_NE((*cluster)->Find(member.name).pid, member.pid) << member.name;
    }
    EXPECT_GT(load.answers(), answers);
  }
  const std::vector<std::string> problems = load.End();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_THAT((*cluster)->Output(), HasSubstr("was drained and left"));
  EXPECT_EQ(Reconcile(**cluster), "");
}

// What runs goes on to its end; what comes waits for a successor, or is refused where none comes.
TEST(DrainTest, SigtermEndsWhatRunsAndTakesNothingNew) {
  auto cluster = RunningCluster::Start({"--max-context", "4096", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const RunningMember decode = (*cluster)->Find("decode-0");
  const GenerateClient client((*cluster)->router_address());
  constexpr int kTokens = 3000;
  std::atomic<int> tokens{0};
  auto running = std::async(std::launch::async, [&] {
    return client.Generate(RandomInputs({50}, kTokens, 3).front(), kTimeout,
                           [&](const GeneratedToken&) { return ++tokens > 0; });
  });
  const auto deadline = steady_clock::now() + Allowed(std::chrono::seconds(10));
  while (tokens < 5 && steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  kill(decode.pid, SIGTERM);
  const auto told = steady_clock::now();
  auto last_taken = told;
  while (true) {
    const auto late = client.Generate(RandomInputs({20}, 2, 4).front(), kTimeout);
    EXPECT_TRUE(late.ok() || absl::IsUnavailable(late.status())) << late.status();
    // Whoever answers now came after the drained worker had ended what ran.
    if (!late.ok() || tokens == kTokens) break;
    last_taken = steady_clock::now();
  }
  EXPECT_LT(last_taken - told, Allowed(milliseconds(500)));
  const absl::StatusOr<ClusterAnswer> answer = running.get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->output.tokens.size(), size_t{kTokens});
  EXPECT_TRUE((*cluster)->WaitUntilReplaced("decode-0", decode.pid));
  EXPECT_THAT((*cluster)->Output(), HasSubstr("decode-0 (pid " + std::to_string(decode.pid) +
                                              ") was drained and left"));
  EXPECT_EQ(Reconcile(**cluster), "");
}

// A prefill worker keeps a cache until decode has it, however late that is.
TEST(DrainTest, ADrainedPrefillWorkerHandsOverWhatItComputed) {
  auto cluster = RunningCluster::Start(
      {"--max-context", "4096", "--threads", "1", "--chunk-tokens", "64"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const RunningMember prefill = (*cluster)->Find("prefill-0");
  const std::vector<GenerateInput> inputs = RandomInputs({3000}, 8, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "4096";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const GenerateClient client((*cluster)->router_address());
  absl::StatusOr<ClusterAnswer> answer = absl::UnknownError("not yet");
  std::thread running([&] { answer = client.Generate(inputs.front(), kTimeout); });
  const auto runs = [&] {
    const auto status = RunningCluster::StatusOf(prefill);
    return status && status->load().running_requests() > 0;
  };
  while (!runs()) std::this_thread::sleep_for(milliseconds(1));
  const Ran drain = RunTool({"drain", prefill.grpc_address});
  EXPECT_EQ(drain.exit, "exit code 0") << drain.output;
  EXPECT_THAT(drain.output, HasSubstr("1 requests still to end"));
  running.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(DifferenceOf(answer->output, expected->front()), "");
  EXPECT_TRUE((*cluster)->WaitUntilReplaced("prefill-0", prefill.pid));
}

TEST(DrainTest, TheDrainTimeoutEndsWhatStillRuns) {
  auto cluster = RunningCluster::Start({"--max-context", "8192", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const RunningMember decode = (*cluster)->Find("decode-0");
  const GenerateClient client((*cluster)->router_address());
  std::atomic<int> tokens{0};
  absl::StatusOr<ClusterAnswer> answer = absl::UnknownError("not yet");
  std::thread running([&] {
    answer = client.Generate(RandomInputs({50}, 4000, 3).front(), kTimeout,
                             [&](const GeneratedToken&) { return ++tokens < 3000; });
  });
  while (tokens < 5) std::this_thread::sleep_for(milliseconds(1));
  const auto start = steady_clock::now();
  const Ran drain = RunTool({"drain", decode.grpc_address, "--drain-timeout", "500ms"});
  EXPECT_EQ(drain.exit, "exit code 0") << drain.output;
  EXPECT_LT(steady_clock::now() - start, Allowed(std::chrono::seconds(10)));
  running.join();  // the stream goes on with the worker that takes over, or ends in one error
  EXPECT_GE(tokens, 5);
}

TEST(DrainTest, StatusShowsTheRouterAndItsWorkers) {
  auto cluster = RunningCluster::Start({"--max-context", "1024", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const Ran table = RunTool({"status", "--url", (*cluster)->url()});
  EXPECT_EQ(table.exit, "exit code 0");
  EXPECT_THAT(table.output, HasSubstr(": ready, 0 running, 0 queued"));
  EXPECT_THAT(table.output, HasSubstr((*cluster)->Find("prefill-0").grpc_address));
  EXPECT_THAT(table.output, HasSubstr((*cluster)->Find("decode-0").grpc_address));
  EXPECT_THAT(table.output, HasSubstr(" s ago"));
  EXPECT_THAT(table.output,
              HasSubstr("up    tcp        prefill worker has no nccl: --device is cpu"));
  const Ran json = RunTool({"status", "--json", "--url", (*cluster)->url()});
  EXPECT_THAT(json.output, HasSubstr("\"ready\":true"));
  EXPECT_THAT(json.output, HasSubstr("\"answers\":true"));
  EXPECT_THAT(json.output, HasSubstr("\"up\":true,\"transport\":\"tcp\""));
}

}  // namespace
}  // namespace lodestone

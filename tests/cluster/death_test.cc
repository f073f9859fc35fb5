// Workers that are killed under streams cost no client a wrong token or an error.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/config.h"
#include "base/mutex.h"
#include "tests/cluster/running_cluster.h"

namespace lodestone {
namespace {

constexpr int kStreams = 16;
constexpr std::chrono::seconds kTimeout(180);

int KillsOfEach() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 5 : 1; }

// 16 clients that ask one question after the other until they are told to end.
class Streams {
 public:
  Streams(const RunningCluster& cluster, std::vector<GenerateInput> inputs,
          std::vector<GenerateOutput> expected)
      : client_(cluster.router_address()),
        inputs_(std::move(inputs)),
        expected_(std::move(expected)) {
    for (int i = 0; i < kStreams; ++i) threads_.emplace_back([this] { AskUntilEnd(); });
  }
  ~Streams() { End(); }

  void End() {
    end_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int64_t tokens() const { return tokens_; }
  int64_t answers() const { return answers_; }
  // Until so many tokens have come since now; false if they do not come.
  bool WaitForTokens(int64_t count) const {
    const int64_t wanted = tokens_ + count;
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (tokens_ < wanted && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return tokens_ >= wanted;
  }
  std::vector<std::string> problems() {
    MutexLock lock(&mutex_);
    return problems_;
  }

 private:
  void AskUntilEnd() {
    while (!end_) {
      const size_t i = next_++ % inputs_.size();
      const auto answer = client_.Generate(inputs_[i], kTimeout, [&](const GeneratedToken&) {
        ++tokens_;
        return true;
      });
      const std::string problem =
          answer.ok() ? DifferenceOf(answer->output, expected_[i]) : answer.status().ToString();
      ++answers_;
      if (problem.empty()) continue;
      MutexLock lock(&mutex_);
      problems_.push_back("prompt of " + std::to_string(inputs_[i].tokens.size()) +
                          " tokens: " + problem);
    }
  }

  const GenerateClient client_;
  const std::vector<GenerateInput> inputs_;
  const std::vector<GenerateOutput> expected_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> tokens_{0}, answers_{0};
  std::atomic<bool> end_{false};
  Mutex mutex_;
  std::vector<std::string> problems_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

TEST(DeathTest, KilledWorkersCostNoClientATokenOrAnError) {
  auto cluster = RunningCluster::Start({"--prefill", "2", "--decode", "2", "--max-context", "1024",
                                        "--max-sequences", "16", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 24; ++i) lengths.push_back(20 + 25 * i);
  const std::vector<GenerateInput> inputs = RandomInputs(lengths, 48, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();

  Streams streams(**cluster, inputs, *expected);
  for (int round = 0; round < KillsOfEach(); ++round) {
    for (const char* role : {"prefill", "decode"}) {
      const std::string victim = std::string(role) + "-" + std::to_string(round % 2);
      ASSERT_TRUE(streams.WaitForTokens(300)) << "no tokens before the death of " << victim;
      const pid_t pid = (*cluster)->Find(victim).pid;
      (*cluster)->KillMember(victim);
      EXPECT_TRUE((*cluster)->WaitUntilReplaced(victim, pid)) << (*cluster)->Output();
      EXPECT_TRUE(streams.WaitForTokens(300)) << "no tokens after the death of " << victim;
    }
  }
  streams.End();
  EXPECT_GT(streams.answers(), kStreams);
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
}

}  // namespace
}  // namespace lodestone

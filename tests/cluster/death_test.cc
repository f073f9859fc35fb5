// Workers that are killed under streams cost no client a wrong token or an error.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/config.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// Any worker, but not one that has just started: `lodestone up` gives up on a process that dies
// again and again within 5 s of its start.
class Victims {
 public:
  // Both roles first, then as it comes.
  std::string Next(std::mt19937& random, int kill) {
    while (true) {
      const bool prefill = (kill < 2 ? kill : random()) % 2 == 0;
      const std::string name =
          (prefill ? "prefill-" : "decode-") + std::to_string(random() % 2);
      if (std::chrono::steady_clock::now() - born_[name] > std::chrono::seconds(6)) return name;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  void Reborn(const std::string& name) { born_[name] = std::chrono::steady_clock::now(); }

 private:
  std::map<std::string, std::chrono::steady_clock::time_point> born_;
};

// Long: 100 kills under 50 streams, of any worker at any moment.
TEST(DeathTest, KilledWorkersCostNoClientATokenOrAnError) {
  const int num_kills = LongTests() ? 100 : 2;
  const int num_streams = LongTests() ? 50 : kSanitized ? 4 : 16;
  auto cluster = RunningCluster::Start({"--prefill", "2", "--decode", "2", "--max-context", "1024",
                                        "--max-sequences", "32", "--threads", "1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 24; ++i) lengths.push_back(20 + 25 * i);
  const std::vector<GenerateInput> inputs = RandomInputs(lengths, 48, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();

  Streams streams((*cluster)->router_address(), num_streams, inputs, *expected);
  std::mt19937 random(7);
  Victims victims;
  for (int kill = 0; kill < num_kills; ++kill) {
    const std::string victim = victims.Next(random, kill);
    ASSERT_TRUE(streams.WaitForTokens(100)) << "no tokens before the death of " << victim;
    std::this_thread::sleep_for(milliseconds(random() % 500));
    const pid_t pid = (*cluster)->Find(victim).pid;
    (*cluster)->KillMember(victim);
    EXPECT_TRUE((*cluster)->WaitUntilReplaced(victim, pid)) << (*cluster)->Output();
    victims.Reborn(victim);
    EXPECT_TRUE(streams.WaitForTokens(100)) << "no tokens after the death of " << victim;
  }
  streams.End();
  EXPECT_GT(streams.answers(), num_streams);
  EXPECT_LE(streams.longest_wait(), Allowed(std::chrono::seconds(10)));
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_EQ(Reconcile(**cluster), "");
  std::cout << num_kills << " kills, " << streams.answers() << " answers, " << streams.tokens()
            << " tokens, longest wait " << streams.longest_wait().count() << " ms\n";
}

// What was delivered belongs to the prompt of the next attempt, which may be too long for the
// prefill worker by then.
TEST(DeathTest, WhatPrefillCannotReplayEndsInOneErrorInTime) {
  if (!LongTests()) GTEST_SKIP() << "waits 8 s; set LODESTONE_LONG_TESTS=1";
  auto cluster = RunningCluster::Start({"--decode", "2", "--max-context", "1024", "--threads", "1",
                                        "--prefill-flag=--max-context=300"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<GenerateInput> inputs = RandomInputs({250}, 400, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const GenerateClient client((*cluster)->router_address());
  std::vector<GeneratedToken> seen;
  auto killed_at = std::chrono::steady_clock::now();
  const auto answer =
      client.Generate(inputs[0], std::chrono::seconds(60), [&](const GeneratedToken& token) {
        seen.push_back(token);
        if (seen.size() != 100) return true;
        for (const char* name : {"decode-0", "decode-1"}) (*cluster)->KillMember(name);
        killed_at = std::chrono::steady_clock::now();
        return true;
      });
  EXPECT_LE(std::chrono::steady_clock::now() - killed_at, Allowed(std::chrono::seconds(10)));
  ASSERT_FALSE(answer.ok());
  EXPECT_NE(answer.status().message().find("prefill worker holds 300"), absl::string_view::npos)
      << answer.status();
  GenerateOutput prefix = (*expected)[0];
  prefix.tokens.resize(std::min(seen.size(), prefix.tokens.size()));
  EXPECT_EQ(DifferenceOf({.tokens = seen, .finish = prefix.finish}, prefix), "");
}

}  // namespace
}  // namespace lodestone

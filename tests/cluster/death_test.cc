// Workers that are killed under streams cost no client a wrong token or an error.

#include <gtest/gtest.h>

#include <random>

#include "base/config.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

bool LongTests() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1"; }

// Long: 100 kills under 50 streams, of any worker at any moment.
TEST(DeathTest, KilledWorkersCostNoClientATokenOrAnError) {
  const int num_kills = LongTests() ? 100 : 2;
  const int num_streams = LongTests() ? 50 : 16;
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
  for (int kill = 0; kill < num_kills; ++kill) {
    // Both roles first, then as it comes.
    const std::string victim = std::string((kill < 2 ? kill : random()) % 2 == 0 ? "prefill" : "decode") +
                               "-" + std::to_string(random() % 2);
    ASSERT_TRUE(streams.WaitForTokens(100)) << "no tokens before the death of " << victim;
    std::this_thread::sleep_for(milliseconds(random() % 500));
    const pid_t pid = (*cluster)->Find(victim).pid;
    (*cluster)->KillMember(victim);
    EXPECT_TRUE((*cluster)->WaitUntilReplaced(victim, pid)) << (*cluster)->Output();
    EXPECT_TRUE(streams.WaitForTokens(100)) << "no tokens after the death of " << victim;
  }
  streams.End();
  EXPECT_GT(streams.answers(), num_streams);
  EXPECT_LE(streams.longest_wait(), Allowed(std::chrono::seconds(10)));
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  std::cout << num_kills << " kills, " << streams.answers() << " answers, " << streams.tokens()
            << " tokens, longest wait " << streams.longest_wait().count() << " ms\n";
}

}  // namespace
}  // namespace lodestone

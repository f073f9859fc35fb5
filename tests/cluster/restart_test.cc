// The only worker of a role is started again under a stream of new requests: they wait for it.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

constexpr int kStreams = 6;

// Long: killed as well, which `lodestone up` starts again after 2 s, and more often.
TEST(RestartTest, TheRestartOfTheOnlyWorkerOfARoleCostsNoClientAnError) {
  const std::string wait = std::to_string(Allowed(std::chrono::seconds(8)).count()) + "ms";
  auto cluster = RunningCluster::Start({"--max-context", "1024", "--max-sequences", "16",
                                        "--threads", "1", "--router-flag=--worker-wait=" + wait,
                                        "--router-flag=--replay-wait=" + wait});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<GenerateInput> inputs = RandomInputs({20, 70, 130, 260, 300, 410}, 24, 9);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();

  Streams streams((*cluster)->router_address(), kStreams, inputs, *expected);
  for (int round = 0; round < (LongTests() ? 6 : 1); ++round) {
    for (const char* name : {"prefill-0", "decode-0"}) {
      ASSERT_TRUE(streams.WaitForTokens(100)) << "no tokens before the restart of " << name;
      const pid_t pid = (*cluster)->Find(name).pid;
      kill(pid, round % 2 == 0 ? SIGTERM : SIGKILL);
      EXPECT_TRUE((*cluster)->WaitUntilReplaced(name, pid)) << (*cluster)->Output();
      EXPECT_TRUE(streams.WaitForTokens(100)) << "no tokens after the restart of " << name;
    }
  }
  streams.End();
  EXPECT_GT(streams.answers(), kStreams);
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_EQ(Reconcile(**cluster), "");
  std::cout << streams.answers() << " answers, longest wait " << streams.longest_wait().count()
            << " ms\n";
}

}  // namespace
}  // namespace lodestone

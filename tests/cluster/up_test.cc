// `lodestone up` itself: what it says, how it ends, what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "tests/cluster/running_cluster.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

TEST(UpTest, SigtermStopsEveryProcessCleanly) {
  auto cluster = RunningCluster::Start({"--max-context", "2048"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<RunningMember> members = (*cluster)->Members();
  EXPECT_EQ(members.size(), 3u);
  for (const RunningMember& member : members) EXPECT_EQ(kill(member.pid, 0), 0) << member.name;
  EXPECT_EQ((*cluster)->Stop(), "exit code 0") << (*cluster)->Output();
  for (const RunningMember& member : members) EXPECT_NE(kill(member.pid, 0), 0) << member.name;
  EXPECT_THAT((*cluster)->Output(), Not(HasSubstr("is killed")));
}

TEST(UpTest, WorkersOfDifferentIndexKeyFormatsAreRefusedByTheField) {
  const auto cluster =
      RunningCluster::Start({"--max-context", "2048", "--prefill-flag=--index-k=bf16",
                             "--decode-flag=--index-k=fp8", "--ready-timeout", "20s"});
  ASSERT_FALSE(cluster.ok());
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("index_k"));
}

TEST(UpTest, WorkerThatCannotStartEndsTheStartWithItsLog) {
  const auto cluster = RunningCluster::Start({"--max-context", "2048", "--memory", "1MiB"});
  ASSERT_FALSE(cluster.ok());
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("exit code 1"));
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("the memory limit is 1048576"));
}

TEST(UpTest, UnknownWorkerFlagIsNamed) {
  const auto cluster = RunningCluster::Start({"--decode-flag=--no-such-flag=1"});
  ASSERT_FALSE(cluster.ok());
  EXPECT_THAT(std::string(cluster.status().message()), HasSubstr("--no-such-flag"));
}

}  // namespace
}  // namespace lodestone

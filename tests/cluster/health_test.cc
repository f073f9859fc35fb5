// Readiness follows progress: a worker that stands still is noticed within 5 s, and counts again
// only after a generation has gone through it. Liveness does not care.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/config.h"
#include "cli/http_client.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr milliseconds kNoticedWithin(5'000);

class ClusterHealthTest : public testing::Test {
 protected:
  void Start(const std::string& bin_dir = LODESTONE_BIN_DIR) {
    auto cluster = RunningCluster::Start({"--max-context", "1024", "--threads", "1"},
                                         std::chrono::minutes(3), bin_dir);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  int StatusOf(const std::string& path) const {
    const HttpClient http(*ParseHttpUrl(cluster_->url()));
    const auto reply = http.Get(path, std::chrono::seconds(2));
    return reply.ok() ? reply->status : 0;
  }
  // Seconds until /readyz has the status; the limit if it never has.
  double SecondsUntil(int readyz, milliseconds limit) const {
    const auto start = steady_clock::now();
    while (StatusOf("/readyz") != readyz && steady_clock::now() < start + limit) {
      EXPECT_EQ(StatusOf("/livez"), 200);
      std::this_thread::sleep_for(milliseconds(20));
    }
    return std::chrono::duration<double>(steady_clock::now() - start).count();
  }
  double ProbesThatPassed() const {
    return MetricSum(MetricsPage(cluster_->Find("router").metrics_port),
                     "lodestone_readiness_probes_total{result=\"ok\"}");
  }

  std::unique_ptr<RunningCluster> cluster_;
};

TEST_F(ClusterHealthTest, AStoppedWorkerIsUnreadyWithin5sAndReadyAfterASelfTest) {
  Start();
  for (const char* name : {"decode-0", "prefill-0"}) {
    const pid_t pid = cluster_->Find(name).pid;
    const double passed = ProbesThatPassed();
    kill(pid, SIGSTOP);
    const milliseconds limit = Allowed(kNoticedWithin);
    EXPECT_LT(SecondsUntil(503, limit), static_cast<double>(limit.count()) / 1e3) << name;
    EXPECT_EQ(StatusOf("/livez"), 200);
    kill(pid, SIGCONT);
    SecondsUntil(200, std::chrono::seconds(120));
    EXPECT_EQ(StatusOf("/readyz"), 200) << name;
    EXPECT_GE(ProbesThatPassed(), passed + 1) << name;
  }
  EXPECT_EQ(Reconcile(*cluster_), "");
}

// A decode step that does not return for 12 s. In short: StatusBoardTest says that the worker is
// unhealthy then, HealthTest of the router that the cluster is unready.
TEST_F(ClusterHealthTest, ALoopThatHangsIsUnreadyWithin5sAndReadyAfterASelfTest) {
  if (GetEnvironment("LODESTONE_LONG_TESTS") != "1") {
    GTEST_SKIP() << "waits for 12 s; with LODESTONE_LONG_TESTS=1";
  }
  const std::string faults = testing::TempDir() + "/lodestone_hang_" + std::to_string(getpid());
  std::filesystem::create_directories(faults);
  setenv("FAULTS_DIR", faults.c_str(), 1);
  Start(LODESTONE_BIN_DIR "/faults");
  unsetenv("FAULTS_DIR");
  ASSERT_NE(cluster_, nullptr);
  const double passed = ProbesThatPassed();
  std::ofstream(faults + "/list") << "decode_step=1*delay(12s)";
  std::filesystem::rename(faults + "/list", faults + "/lodestone-decode");
  std::thread asking([&] {  // its second token is in the step that hangs
    const GenerateClient client(cluster_->router_address());
    (void)client.Generate(RandomInputs({30}, 4, 3).front(), std::chrono::seconds(60));
  });
  const milliseconds limit = Allowed(kNoticedWithin);
  EXPECT_LT(SecondsUntil(503, limit), static_cast<double>(limit.count()) / 1e3);
  SecondsUntil(200, std::chrono::seconds(120));
  asking.join();
  EXPECT_EQ(StatusOf("/readyz"), 200);
  EXPECT_GE(ProbesThatPassed(), passed + 1);
}

TEST_F(ClusterHealthTest, ASecondClusterInTheSameFolderIsRefusedWithThePidOfTheFirst) {
  Start();
  const std::string log = cluster_->run_dir() + "/second.log";
  auto second = ChildProcess::Start({.argv = {LODESTONE_BIN_DIR "/lodestone", "up", "--model",
                                              kNeedleTiny, "--http-port", "0", "--run-dir",
                                              cluster_->run_dir()},
                                     .stdout_path = log,
                                     .stderr_path = log});
  ASSERT_TRUE(second.ok()) << second.status();
  std::optional<std::string> exit;
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (!(exit = second->PollExit()) && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(exit, "exit code 1");
  EXPECT_THAT(LastLines(log, 10),
              HasSubstr("held by process " + std::to_string(cluster_->pid())));
  EXPECT_EQ(StatusOf("/readyz"), 200);
}

}  // namespace
}  // namespace lodestone

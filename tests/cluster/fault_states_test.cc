// Processes that die or freeze at a named state of a hand-off, under streams.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/config.h"
#include "base/failpoint.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

struct State {
  const char* role;
  const char* failpoint;
  bool long_only;
};

constexpr State kStates[] = {
    {"prefill", "kvtransfer.handoff", false}, {"decode", "kvtransfer.adopted", false},
    {"decode", "kvtransfer.commit", true},    {"prefill", "prefill_enqueue", true},
    {"prefill", "kvtransfer.pack", true},     {"prefill", "kvtransfer.offer", true},
    {"prefill", "kvtransfer.write", true},    {"prefill", "prefill_after_step", true},
    {"decode", "decode_reserve", true},       {"decode", "kvtransfer.grant", true},
    {"decode", "kvtransfer.adopt", true},     {"decode", "decode_adopt", true},
    {"decode", "decode_step", true}};

TEST(ShippedBinariesTest, HaveNoFailpoints) {
  if (kFailpointsEnabled) GTEST_SKIP() << "a build with failpoints in everything";
  for (const char* role : {"prefill", "decode"}) {
    const std::string command = std::string("LODESTONE_FAILPOINTS=a=crash " LODESTONE_BIN_DIR
                                            "/lodestone-") +
                                role + " --model " + kNeedleTiny + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string output;
    char buffer[1024];
    while (fgets(buffer, sizeof(buffer), pipe) != nullptr) output += buffer;
    EXPECT_NE(pclose(pipe), 0) << role;
    EXPECT_NE(output.find("has no failpoints"), std::string::npos) << output;
  }
}

// A cluster whose workers have failpoints, and streams on it.
class FaultStatesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    faults_dir_ = testing::TempDir() + "/lodestone_faults_" + std::to_string(getpid());
    std::filesystem::create_directories(faults_dir_);
    setenv("FAULTS_DIR", faults_dir_.c_str(), 1);
    auto cluster = RunningCluster::Start({"--prefill", "2", "--decode", "2", "--max-context",
                                          "1024", "--max-sequences", "16", "--threads", "1"},
                                         std::chrono::minutes(3), LODESTONE_BIN_DIR "/faults");
    unsetenv("FAULTS_DIR");
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    inputs_ = RandomInputs({30, 90, 150, 300, 450, 600}, 24, 5);
    ClusterFlags flags;
    flags.model = kNeedleTiny;
    flags.max_context = "1024";
    auto expected = SingleProcessAnswers(flags, inputs_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
    cluster_ = *std::move(cluster);
  }
  static void TearDownTestSuite() { cluster_ = nullptr; }

  void SetUp() override {
    ASSERT_NE(cluster_, nullptr);
    streams_ = std::make_unique<Streams>(cluster_->router_address(), 8, inputs_, expected_);
  }
  void TearDown() override {
    if (streams_ == nullptr) return;
    streams_->End();
    const std::vector<std::string> problems = streams_->problems();
    EXPECT_EQ(problems.size(), 0u) << problems.front();
    EXPECT_LE(streams_->longest_wait(), Allowed(seconds(10)));
    ExpectIdle();
    std::cout << streams_->answers() << " answers, longest wait "
              << streams_->longest_wait().count() << " ms\n";
  }

  void ExpectIdle() {
    for (const RunningMember& member : cluster_->Members()) {
      if (member.name == "router") continue;
      const auto deadline = steady_clock::now() + seconds(10);
      std::string left = "no answer";
      while (!left.empty() && steady_clock::now() < deadline) {
        if (const auto status = RunningCluster::StatusOf(member)) left = NotIdle(*status);
        std::this_thread::sleep_for(milliseconds(20));
      }
      EXPECT_EQ(left, "") << member.name;
    }
  }
  static std::string NotIdle(const v1::GetStatusReply& status) {
    if (status.reserved_bytes() == 0 && status.orphan_bytes() == 0 && status.live_leases() == 0 &&
        status.live_sequences() == 0) {
      return "";
    }
    return status.ShortDebugString();
  }
  std::map<std::string, pid_t> Pids() const {
    std::map<std::string, pid_t> pids;
    for (const RunningMember& member : cluster_->Members()) pids[member.name] = member.pid;
    return pids;
  }
  // The next process of `role` to reach the failpoint dies there. Its name, once it has.
  std::string KillAt(const std::string& role, const std::string& failpoint) {
    const std::map<std::string, pid_t> before = Pids();
    const std::string list = faults_dir_ + "/list";
    std::ofstream(list) << failpoint << "=1*crash";
    std::filesystem::rename(list, faults_dir_ + "/lodestone-" + role);
    const auto deadline = steady_clock::now() + seconds(30);
    while (steady_clock::now() < deadline) {
      for (const auto& [name, pid] : before) {
        if (kill(pid, 0) != 0) return name;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return "";
  }
  // Until `condition`, or a failure after `limit`.
  static milliseconds TimeUntil(const std::function<bool()>& condition, milliseconds limit) {
    const auto start = steady_clock::now();
    while (!condition() && steady_clock::now() - start < limit) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
  }
  // Whether a prefill worker that runs still has a link to `decode_instance`.
  bool Linked(const std::string& decode_instance) const {
    for (const char* name : {"prefill-0", "prefill-1"}) {
      const auto status = RunningCluster::StatusOf(cluster_->Find(name));
      if (!status) continue;
      for (const std::string& linked : status->load().linked_instance_ids()) {
        if (linked == decode_instance) return true;
      }
    }
    return false;
  }

  static inline std::string faults_dir_;
  static inline std::unique_ptr<RunningCluster> cluster_;
  static inline std::vector<GenerateInput> inputs_;
  static inline std::vector<GenerateOutput> expected_;
  std::unique_ptr<Streams> streams_;
};

TEST_F(FaultStatesTest, BusyProcessorsAreNoFault) {
  std::map<std::string, uintmax_t> log_ends;
  for (const RunningMember& member : cluster_->Members()) {
    log_ends[member.name] = std::filesystem::file_size(member.log_path);
  }
  std::atomic<bool> end{false};
  std::vector<std::thread> burners;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    burners.emplace_back([&end] {
      while (!end) {
      }
    });
  }
  std::this_thread::sleep_for(LongTests() ? seconds(600) : seconds(3));
  end = true;
  for (std::thread& burner : burners) burner.join();
  for (const RunningMember& member : cluster_->Members()) {
    std::ifstream log(member.log_path);
    log.seekg(static_cast<std::streamoff>(log_ends[member.name]));
    for (std::string line; std::getline(log, line);) {
      EXPECT_EQ(line.find("link is down"), line.npos) << member.name << ": " << line;
      EXPECT_EQ(line.find(" left: "), line.npos) << member.name << ": " << line;
    }
  }
}

TEST_F(FaultStatesTest, AWorkerKilledAtAnyStateCostsNoClientATokenOrAnError) {
  for (const State& state : kStates) {
    if (state.long_only && !LongTests()) continue;
    SCOPED_TRACE(state.failpoint);
    ASSERT_TRUE(streams_->WaitForTokens(100));
    const std::map<std::string, pid_t> before = Pids();
    const std::string victim = KillAt(state.role, state.failpoint);
    ASSERT_EQ(victim.substr(0, victim.find('-')), state.role);
    EXPECT_TRUE(cluster_->WaitUntilReplaced(victim, before.at(victim))) << cluster_->Output();
  }
  EXPECT_TRUE(streams_->WaitForTokens(100));
}

TEST_F(FaultStatesTest, DeadAndFrozenWorkersAreNoticedInTime) {
  ASSERT_TRUE(streams_->WaitForTokens(500));
  // Dead: the kernel says so.
  const RunningMember dead = cluster_->Find("decode-0");
  const auto dead_status = RunningCluster::StatusOf(dead);
  ASSERT_TRUE(dead_status);
  ASSERT_TRUE(Linked(dead_status->instance_id()));
  cluster_->KillMember(dead.name);
  const milliseconds dead_after =
      TimeUntil([&] { return !Linked(dead_status->instance_id()); }, seconds(5));
  EXPECT_LE(dead_after, Allowed(milliseconds(200)));
  EXPECT_TRUE(cluster_->WaitUntilReplaced(dead.name, dead.pid)) << cluster_->Output();
  // Frozen: only silence says so.
  const RunningMember frozen = cluster_->Find("decode-1");
  const auto frozen_status = RunningCluster::StatusOf(frozen);
  ASSERT_TRUE(frozen_status);
  ASSERT_TRUE(streams_->WaitForTokens(300));
  kill(frozen.pid, SIGSTOP);
  const milliseconds frozen_after =
      TimeUntil([&] { return !Linked(frozen_status->instance_id()); }, seconds(10));
  EXPECT_LE(frozen_after, Allowed(seconds(3)));
  EXPECT_TRUE(streams_->WaitForTokens(300)) << "nothing goes on beside a frozen worker";
  kill(frozen.pid, SIGCONT);
  // It comes back as it is, having given up what it held.
  const milliseconds back =
      TimeUntil([&] { return Linked(frozen_status->instance_id()); }, seconds(15));
  EXPECT_LE(back, Allowed(seconds(10)));
  std::cout << "dead noticed after " << dead_after.count() << " ms, frozen after "
            << frozen_after.count() << " ms, linked again " << back.count() << " ms after that\n";
}

}  // namespace
}  // namespace lodestone

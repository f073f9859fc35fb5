// Partitions that nobody is told of, between processes in network namespaces. Needs to make
// namespaces: skipped where that is not allowed.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/config.h"
#include "cli/generate_client.h"
#include "cli/process.h"
#include "cli/verify.h"
#include "tests/cluster/running_cluster.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kInside[] = "FAULTS_IN_NAMESPACE";
constexpr seconds kHang(10);   // no request may take longer, whatever is cut
constexpr seconds kHealed(3);  // until requests succeed again after the end of a partition

bool Shell(const std::string& command) { return system(command.c_str()) == 0; }

bool IsInside() { return getenv(kInside) != nullptr; }

// Runs the test of this name again in namespaces of its own; what it said.
void RunInNamespaces(const std::string& test) {
  if (!Shell("unshare -Urnm ip link set lo up 2>/dev/null")) {
    GTEST_SKIP() << "this machine does not let us make network namespaces (unshare -Urnm)";
  }
  if (!Shell("unshare -Urnm sh -c 'ip link add vetha type veth peer name vethb' 2>/dev/null")) {
    GTEST_SKIP() << "this machine has no virtual Ethernet (ip link add type veth)";
  }
  char self[PATH_MAX] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string command = std::string(kInside) + "=1 unshare -Urnm " + self +
                              " --gtest_filter=" + test + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0) << output;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("partition ")) std::cout << line << "\n";
  }
}

// The router and the client live in this namespace, each worker in one of its own, and every two of
// them have a cable to themselves. A worker has one address for all, on its loopback device.
//   router 10.77.0.1 | prefill "p" 10.77.0.2 | decode "d" 10.77.0.3, "e" 10.77.0.4
class Topology {
 public:
  static constexpr int kHosts = 4;

  static bool Build() {
    bool ok = Shell("mkdir -p /run/netns && mount -t tmpfs none /run/netns") &&
              Shell("ip link set lo up");
    for (int host = 1; host < kHosts; ++host) {
      ok = ok && Shell("ip netns add " + Name(host) + " && " + In(host) + "ip link set lo up");
    }
    for (int host = 0; host < kHosts; ++host) {
      ok = ok && Shell(In(host) + "ip addr add " + Address(host) + "/32 dev lo");
    }
    for (int a = 0; a < kHosts; ++a) {
      for (int b = a + 1; b < kHosts; ++b) ok = ok && Join(a, b);
    }
    return ok;
  }

  static std::string Address(int host) { return "10.77.0." + std::to_string(host + 1); }
  static std::string Name(int host) { return std::string(1, "rpde"[host]); }
  // Prefix of commands that run on `host`.
  static std::string In(int host) { return host == 0 ? "" : "ip netns exec " + Name(host) + " "; }

  // What `from` sends to `to` is lost on the way from now on, without anyone being told.
  static void CutOneWay(int from, int to) {
    ASSERT_TRUE(Shell(In(from) + "ip neigh replace " + Cable(to, from) +
                      " lladdr 02:00:00:00:00:99 nud permanent dev " + Device(from, to)));
  }
  static void HealOneWay(int from, int to) {
    ASSERT_TRUE(
        Shell(In(from) + "ip neigh del " + Cable(to, from) + " dev " + Device(from, to)));
  }

 private:
  static std::string Device(int host, int peer) { return "to" + Name(peer) + Name(host); }
  // The address of `host` on its cable to `peer`.
  static std::string Cable(int host, int peer) {
    return "10.78." + std::to_string(10 * std::min(host, peer) + std::max(host, peer)) + "." +
           std::to_string(host + 1);
  }
  static bool Join(int a, int b) {
    bool ok = Shell("ip link add " + Device(a, b) + " type veth peer name " + Device(b, a));
    for (const auto& [host, peer] : {std::pair(a, b), std::pair(b, a)}) {
      if (host != 0) ok = ok && Shell("ip link set " + Device(host, peer) + " netns " + Name(host));
      ok = ok &&
           Shell(In(host) + "ip addr add " + Cable(host, peer) + "/24 dev " + Device(host, peer)) &&
           Shell(In(host) + "ip link set " + Device(host, peer) + " up");
    }
    for (const auto& [host, peer] : {std::pair(a, b), std::pair(b, a)}) {
      ok = ok && Shell(In(host) + "ip route add " + Address(peer) + "/32 via " + Cable(peer, host) +
                       " src " + Address(host));
    }
    return ok;
  }
};

class Processes {
 public:
  Processes() {
    const std::string dir = testing::TempDir() + "/lodestone_partition_" + std::to_string(getpid());
    Shell("mkdir -p " + dir);
    dir_ = dir;
    Start("router", 0, {"--http-port", "8080", "--grpc-port", "8081", "--metrics-port", "0"});
    Start("prefill", 1, {"--grpc-port", "8101", "--metrics-port", "0"});
    Start("decode", 2, {"--grpc-port", "8201", "--metrics-port", "0"});
    Start("decode", 3, {"--grpc-port", "8201", "--metrics-port", "0"});
  }

  std::string Log(int host) const {
    std::stringstream log;
    log << std::ifstream(dir_ + "/" + Topology::Name(host) + ".log").rdbuf();
    return log.str();
  }

 private:
  void Start(const std::string& kind, int host, std::vector<std::string> flags) {
    std::vector<std::string> argv = {"/bin/sh", "-c"};
    std::string command = "exec " + Topology::In(host) + LODESTONE_BIN_DIR "/lodestone-" + kind +
                          " --model " + kNeedleTiny + " --bind " + Topology::Address(host);
    for (const std::string& flag : flags) command += " " + flag;
    if (kind != "router") {
      command += " --router " + Topology::Address(0) + ":8081 --max-context 1024 --threads 1 ";
    }
    argv.push_back(command);
    const std::string base = dir_ + "/" + Topology::Name(host);
    auto process = ChildProcess::Start(
        {.argv = argv, .stdout_path = base + ".out", .stderr_path = base + ".log"});
    ASSERT_TRUE(process.ok()) << process.status();
    processes_.push_back(*std::move(process));
  }

  std::string dir_;
  std::vector<ChildProcess> processes_;
};

// One question, over and over. Each answer is right, or an error that says why, and comes in time.
class Client {
 public:
  Client() : client_(Topology::Address(0) + ":8081"), inputs_(RandomInputs({200}, 16, 3)) {
    ClusterFlags flags;
    flags.model = kNeedleTiny;
    flags.max_context = "1024";
    expected_ = SingleProcessAnswers(flags, inputs_).value();
  }

  absl::Status Ask() {
    const auto start = steady_clock::now();
    const auto answer = client_.Generate(inputs_[0], seconds(60));
    EXPECT_LE(steady_clock::now() - start, Allowed(kHang)) << answer.status();
    longest_ = std::max(longest_, steady_clock::now() - start);
    if (!answer.ok()) return answer.status();
    EXPECT_EQ(DifferenceOf(answer->output, expected_[0]), "");
    return absl::OkStatus();
  }
  // Until the first answer after which `count` in a row are right.
  milliseconds TimeToService(seconds limit, int count = 3) {
    const auto start = steady_clock::now();
    while (steady_clock::now() - start < limit) {
      const auto began = steady_clock::now();
      int right = 0;
      while (right < count && Ask().ok()) ++right;
      if (right == count) return std::chrono::duration_cast<milliseconds>(began - start);
      std::this_thread::sleep_for(milliseconds(20));
    }
    ADD_FAILURE() << "no service";
    return limit;
  }
  milliseconds longest() const { return std::chrono::duration_cast<milliseconds>(longest_); }
  void ResetLongest() { longest_ = {}; }

 private:
  const GenerateClient client_;
  const std::vector<GenerateInput> inputs_;
  std::vector<GenerateOutput> expected_;
  steady_clock::duration longest_{};
};

struct Partition {
  const char* name;
  std::vector<std::pair<int, int>> cuts;  // from, to
  bool others_serve;                      // requests go on without an error
};

TEST(PartitionTest, NothingHangsAndServiceIsBackAfterEveryPartition) {
  if (!IsInside()) {
    return RunInNamespaces("PartitionTest.NothingHangsAndServiceIsBackAfterEveryPartition");
  }
  const bool is_long = GetEnvironment("LODESTONE_LONG_TESTS") == "1";
  ASSERT_TRUE(Topology::Build());
  Client client;
  Processes processes;
  client.TimeToService(seconds(60));
  const Partition partitions[] = {
      {"prefill-decode", {{1, 2}, {2, 1}}, true},
      {"prefill to decode only", {{1, 2}}, true},
      {"router-prefill", {{0, 1}, {1, 0}}, false},
      {"decode to prefill only", {{2, 1}}, true},
      {"router-decode", {{0, 2}, {2, 0}}, true},
      {"decode to router only", {{2, 0}}, true},
      {"prefill to router only", {{1, 0}}, false},
  };
  int count = 0;
  for (const Partition& partition : partitions) {
    if (!is_long && ++count > 2) break;
    SCOPED_TRACE(partition.name);
    client.ResetLongest();
    for (const auto& [from, to] : partition.cuts) Topology::CutOneWay(from, to);
    const auto until = steady_clock::now() + (is_long ? seconds(30) : seconds(4));
    int right = 0, told = 0;
    while (steady_clock::now() < until) {
      const absl::Status status = client.Ask();
      ++(status.ok() ? right : told);
      if (partition.others_serve) {
        EXPECT_TRUE(status.ok()) << status;
      }
      if (!status.ok()) std::this_thread::sleep_for(milliseconds(50));
    }
    const milliseconds longest = client.longest();
    for (const auto& [from, to] : partition.cuts) Topology::HealOneWay(from, to);
    const milliseconds back = client.TimeToService(seconds(30));
    EXPECT_LE(back, Allowed(kHealed));
    std::cout << "partition " << partition.name << ": " << right << " answers, " << told
              << " errors, the longest after " << longest.count() << " ms; served "
              << back.count() << " ms after its end\n";
  }
  if (testing::Test::HasFailure()) {
    for (int host = 0; host < Topology::kHosts; ++host) {
      std::cout << "---- " << Topology::Name(host) << "\n" << processes.Log(host);
    }
  }
}

}  // namespace
}  // namespace lodestone

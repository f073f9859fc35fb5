#include "tests/two_gpus/over_nccl.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/config.h"
#include "kvtransfer/nccl_links.h"
#include "runtime/device.h"
#include "tests/cluster/reconcile.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The binaries in a folder where workers of each kind run on a host of their own, as far as NCCL
// knows.
std::string BinariesOfTwoHosts() {
  namespace fs = std::filesystem;
  const fs::path dir = testing::TempDir() + "/lodestone_two_hosts_" + std::to_string(getpid());
  const fs::path real = ProgramDirectory();
  fs::create_directories(dir);
  // `lodestone` starts what lies beside itself.
  fs::copy_file(real / "lodestone", dir / "lodestone", fs::copy_options::overwrite_existing);
  for (const std::string name : {"router", "prefill", "decode"}) {
    const fs::path script = dir / ("lodestone-" + name);
    std::ofstream(script) << "#!/bin/sh\nexec env NCCL_HOSTID=" << name << "-host '"
                          << (real / ("lodestone-" + name)).string() << "' \"$@\"\n";
    fs::permissions(script, fs::perms::owner_all);
  }
  return dir;
}

}  // namespace

void OverNcclTest::SetUp() {
  for (const int gpu : {0, GetParam().other_gpu()}) {
    const auto device = DescribeDevice(DeviceId{gpu});
    if (!device.ok()) GTEST_SKIP() << "needs GPU " << gpu << ": " << device.status();
  }
  if (const auto nccl = CheckNccl(); !nccl.ok()) GTEST_SKIP() << nccl;
}

std::unique_ptr<RunningCluster> OverNcclTest::Start(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--max-context", "12288", "--max-sequences", "32"});
  static const std::string two_hosts = BinariesOfTwoHosts();
  const std::string binaries = GetParam().two_hosts ? two_hosts : ProgramDirectory();
  auto cluster = RunningCluster::Start(flags, std::chrono::minutes(1), binaries);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

std::vector<GenerateOutput> AnswersOfOneProcess(const std::vector<GenerateInput>& inputs) {
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.device = "cuda:0";
  flags.max_context = "12288";
  auto expected = SingleProcessAnswers(flags, inputs);
  EXPECT_TRUE(expected.ok()) << expected.status();
  return expected.ok() ? *std::move(expected) : std::vector<GenerateOutput>{};
}

int64_t FreeBytes(int gpu) { return DescribeDevice(DeviceId{gpu}).value().free_bytes; }

std::string TextOf(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

int CountOf(const std::string& text, std::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

double LinksUp(const RunningMember& member) {
  return MetricSum(MetricsPage(member.metrics_port), "lodestone_link_up");
}
double LinksOverNccl(const RunningMember& member) {
  const std::string page = MetricsPage(member.metrics_port);
  std::istringstream lines(page);
  double links = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("lodestone_link_up{")) continue;
    if (line.find("transport=\"nccl\"") != line.npos)
      links += std::stod(line.substr(line.rfind(' ')));
  }
  return links;
}

bool WaitFor(const std::function<bool()>& condition, milliseconds limit) {
  const auto until = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

}  // namespace lodestone

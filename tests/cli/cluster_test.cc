#include "cli/cluster.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// Programs in place of the binaries.
class ClusterTest : public testing::Test {
 protected:
  void WriteProgram(const std::string& name, const std::string& script) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  std::unique_ptr<Cluster> Start() {
    WriteProgram("lodestone-router", "echo listening http=1 grpc=2 metrics=3\nexec sleep 600");
    ClusterOptions options;
    options.bin_dir = folder_.path();
    options.run_dir = folder_.path() + "/run";
    options.num_decode = 0;
    options.restart_after = milliseconds(1);
    options.stop_timeout = milliseconds(100);
    const auto ignore = [](std::string_view) {};
    return Cluster::Start(std::move(options), ignore, ignore).value();
  }
  int64_t NumStarts() const {
    std::ifstream starts(folder_.path() + "/starts");
    int64_t count = 0;
    for (std::string line; std::getline(starts, line);) ++count;
    return count;
  }
  // For `time`; the first error.
  static absl::Status Supervise(Cluster& cluster, milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end) {
      if (absl::Status status = cluster.Supervise(); !status.ok()) return status;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return absl::OkStatus();
  }

  const TempDir folder_;
};

TEST_F(ClusterTest, AWorkerThatKeepsLeavingIsStartedLessAndLessOften) {
  WriteProgram("lodestone-prefill", "echo x >>" + folder_.path() + "/starts");
  const std::unique_ptr<Cluster> cluster = Start();
  EXPECT_TRUE(Supervise(*cluster, milliseconds(1000)).ok());
  // At once, then after 100, 200 and 400 ms.
  EXPECT_GE(NumStarts(), 2);
  EXPECT_LE(NumStarts(), 5);
}

TEST_F(ClusterTest, AWorkerThatKeepsDyingEndsTheCluster) {
  WriteProgram("lodestone-prefill", "exit 3");
  const std::unique_ptr<Cluster> cluster = Start();
  const absl::Status status = Supervise(*cluster, milliseconds(20'000));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("prefill-0 died 5 times"), status.message().npos) << status;
}

}  // namespace
}  // namespace lodestone

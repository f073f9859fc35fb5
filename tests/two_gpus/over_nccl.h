#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/long_tests.h"

namespace lodestone {

// Where prefill and decode workers run such that their caches travel over NCCL: on two GPUs of one
// host, or on one GPU as processes that NCCL takes for two hosts, since their NCCL_HOSTID differ.
// It then uses its network.
struct Placement {
  const char* name;
  bool two_hosts;
  // The GPU of workers beside those of GPU 0.
  int other_gpu() const { return two_hosts ? 0 : 1; }
  std::string other_device() const { return "cuda:" + std::to_string(other_gpu()); }
};
inline constexpr Placement kTwoGpus = {"TwoGpus", false};
inline constexpr Placement kTwoHostsOnOneGpu = {"TwoHostsOnOneGpu", true};
void PrintTo(const Placement& placement, std::ostream* out);

// Skips where the placement or NCCL is not to be had.
class OverNcclTest : public testing::TestWithParam<Placement> {
 protected:
  void SetUp() override;
  // A cluster of the placement, or null, and the test fails.
  static std::unique_ptr<RunningCluster> Start(std::vector<std::string> flags);
};

// As one process answers on GPU 0; empty, and the test fails, if it cannot.
std::vector<GenerateOutput> AnswersOfOneProcess(const std::vector<GenerateInput>& inputs);

int64_t FreeBytes(int gpu);
std::string TextOf(const std::string& path);
int CountOf(const std::string& text, std::string_view what);
double LinksUp(const RunningMember& member);
double LinksOverNccl(const RunningMember& member);
bool WaitFor(const std::function<bool()>& condition,
             std::chrono::milliseconds limit = std::chrono::seconds(20));

}  // namespace lodestone

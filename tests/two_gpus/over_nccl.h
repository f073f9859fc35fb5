#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/placement.h"

namespace lodestone {

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

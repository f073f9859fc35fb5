#include "worker/transports.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

WorkerConfig ConfigOf(const std::string& device, const std::string& transport) {
  WorkerConfig config;
  config.device = device;
  config.transport = transport;
  return config;
}

TEST(TransportsTest, AWorkerWithoutAGpuHasTcpAndSaysWhyNotNccl) {
  const auto dialers = MakeDialers(ConfigOf("cpu", "auto"), [] {});
  ASSERT_TRUE(dialers.ok()) << dialers.status();
  ASSERT_EQ(dialers->all.size(), 1u);
  EXPECT_EQ(dialers->all[0]->name(), "tcp");
  EXPECT_EQ(dialers->left_out, "nccl: --device is cpu");
  const auto listeners = MakeListeners(ConfigOf("cpu", "auto"), 0, [] {});
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  ASSERT_EQ(listeners->all.size(), 1u);
  EXPECT_EQ(listeners->all[0]->name(), "tcp");
  EXPECT_EQ(listeners->left_out, "nccl: --device is cpu");
}

TEST(TransportsTest, TcpByNameSaysThatItWasAskedFor) {
  const auto dialers = MakeDialers(ConfigOf("cpu", "tcp"), [] {});
  ASSERT_TRUE(dialers.ok()) << dialers.status();
  EXPECT_EQ(dialers->left_out, "nccl: --transport is tcp");
}

TEST(TransportsTest, NcclByNameIsAnErrorWhereItCannotBeHad) {
  const auto dialers = MakeDialers(ConfigOf("cpu", "nccl"), [] {});
  EXPECT_EQ(dialers.status().message(), "--transport nccl: --device is cpu");
}

}  // namespace
}  // namespace lodestone

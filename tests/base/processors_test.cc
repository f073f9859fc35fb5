#include "base/processors.h"

#include <sched.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

class CpuQuotaTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  double Quota(const std::string& groups) { return CpuQuota(groups, root_.string()); }

  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) /
      testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CpuQuotaTest, IsThatOfTheGroupOrOfOneAroundIt) {
  Write("slice/cpu.max", "800000 100000\n");
  Write("slice/unit/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota("0::/slice/unit\n"), 8);
  Write("slice/unit/cpu.max", "150000 100000\n");
  EXPECT_EQ(Quota("0::/slice/unit\n"), 1.5);
}

TEST_F(CpuQuotaTest, OfAContainerIsAtTheRootItSees) {
  Write("cpu.max", "200000 100000\n");
  EXPECT_EQ(Quota("0::/\n"), 2);
  EXPECT_EQ(Quota("0::/of/the/host\n"), 2);
}

TEST_F(CpuQuotaTest, OfVersionOneCountsToo) {
  Write("cpu/box/cpu.cfs_quota_us", "400000\n");
  Write("cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota("3:memory:/box\n2:cpu,cpuacct:/box\n0::/\n"), 4);
  Write("cpu/box/cpu.cfs_quota_us", "-1\n");
  EXPECT_TRUE(std::isinf(Quota("2:cpu,cpuacct:/box\n")));
}

TEST_F(CpuQuotaTest, IsInfiniteWithoutOneOrWithNonsense) {
  for (const char* text : {"max 100000", "", "x", "-5 100000", "100000 0", "100000"}) {
    Write("a/cpu.max", text);
    EXPECT_TRUE(std::isinf(Quota("0::/a\n"))) << text;
  }
  for (const char* groups : {"", "::", "nonsense\n", "0:", "0::/none/../../..\n"}) {
    EXPECT_TRUE(std::isinf(Quota(groups))) << groups;
  }
}

TEST(UsableProcessorsTest, OfAPinnedThreadAreOne) {
  int usable = 0;
  std::thread([&usable] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    usable = UsableProcessors();
  }).join();
  EXPECT_EQ(usable, 1);
}

TEST(UsableProcessorsTest, AreAtLeastOneAndNoMoreThanThereAre) {
  EXPECT_GE(UsableProcessors(), 1);
  EXPECT_LE(UsableProcessors(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace lodestone

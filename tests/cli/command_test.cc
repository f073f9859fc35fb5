#include "cli/command.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "cli/cluster_flags.h"
#include "cli/verify.h"

namespace lodestone {
namespace {

TEST(RunCommandTest, AConfigFileOfTheEnvironmentIsForTheCommandAlone) {
  const std::string path = ::testing::TempDir() + "/command.toml";
  std::ofstream(path) << "model = \"" LODESTONE_SOURCE_DIR "/models/needle-tiny\"\n"
                      << "prefill = 2\n";  // no key of a worker
  setenv("LODESTONE_CONFIG", path.c_str(), 1);
  const char* const argv[] = {"up"};
  const int code = RunCommand<ClusterFlags>("up", "", 1, argv, [](const ClusterFlags& flags) {
    EXPECT_EQ(flags.num_prefill, 2);
    EXPECT_EQ(std::getenv("LODESTONE_CONFIG"), nullptr);
    const auto options = SingleProcessOptions(flags);  // parses as a worker does
    EXPECT_TRUE(options.ok()) << options.status();
    return 7;
  });
  unsetenv("LODESTONE_CONFIG");
  EXPECT_EQ(code, 7);
}

}  // namespace
}  // namespace lodestone

// Checkpoints that the tool wrote, served by a cluster: FP8 matrices and FP4 experts.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/cluster/running_cluster.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;

struct Finished {
  std::string exit;
  std::string output;
};

Finished Lodestone(std::vector<std::string> arguments) {
  const std::string out = ::testing::TempDir() + "/weight_forms.out";
  arguments.insert(arguments.begin(), LODESTONE_BIN_DIR "/lodestone");
  auto child = ChildProcess::Start(
      {.argv = std::move(arguments), .stdout_path = out, .stderr_path = out + ".err"});
  if (!child.ok()) return {child.status().ToString(), ""};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  std::optional<std::string> exit;
  while (!(exit = child->PollExit()) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {exit.value_or("no end in time"), LastLines(out, 1000)};
}

class WeightFormsTest : public ::testing::Test {
 protected:
  WeightFormsTest() : root_(fs::path(::testing::TempDir()) / "lodestone_weight_forms") {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~WeightFormsTest() override { fs::remove_all(root_); }

  std::string Folder(const std::string& name) const { return (root_ / name).string(); }
  static void ExpectClusterEqualsOneProcess(const std::string& model) {
    const Finished verify =
        Lodestone({"verify", "--model", model, "--lengths", "5,129,513", "--batch", "3",
                   "--chunk-tokens", "128", "--max-context", "1024"});
    EXPECT_EQ(verify.exit, "exit code 0") << verify.output;
    EXPECT_TRUE(verify.output.ends_with("\n0 differences\n")) << verify.output;
  }

  const fs::path root_;
};

TEST_F(WeightFormsTest, OfficialFormOfTheBundledModelAnswersAsInOneProcess) {
  const Finished convert =
      Lodestone({"convert", kNeedleTiny, Folder("official"), "--to", "official"});
  ASSERT_EQ(convert.exit, "exit code 0") << convert.output;
  ExpectClusterEqualsOneProcess(Folder("official"));
}

TEST_F(WeightFormsTest, SyntheticCheckpointAnswersAsInOneProcess) {
  std::string config;
  {
    std::ifstream file(LODESTONE_SOURCE_DIR "/tests/golden/reference/mini-fp8/config.json");
    config.assign(std::istreambuf_iterator<char>(file), {});
  }
  const size_t at = config.find("\"vocab_size\": 256");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 17, "\"vocab_size\": 1024");  // of the bundled tokenizer
  std::ofstream(Folder("config.json")) << config;
  const Finished synthesize = Lodestone({"synthesize", Folder("config.json"), Folder("synthetic"),
                                         "--seed", "5", "--tokenizer", kNeedleTiny});
  ASSERT_EQ(synthesize.exit, "exit code 0") << synthesize.output;
  ExpectClusterEqualsOneProcess(Folder("synthetic"));
}

}  // namespace
}  // namespace lodestone

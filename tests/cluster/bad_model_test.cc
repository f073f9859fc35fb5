// The binaries refuse a bad model folder: exit code 1, in time, naming file and tensor. What the
// mutations are is in tests/testing/bad_models.cc; all of them go through the binary in a long run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/config.h"
#include "cli/process.h"
#include "tests/testing/bad_models.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kLimit(5);
constexpr int kShare = 9;  // one mutation of so many in a short run

struct Exit {
  std::string how;
  std::string said;
};

Exit Run(const std::string& binary, const std::string& model) {
  const TempDir logs;
  ProcessOptions options{
      .argv = {std::string(LODESTONE_BIN_DIR) + "/" + binary, "--model", model, "--grpc-port", "0",
               "--metrics-port", "0"},
      .stdout_path = logs / "out",
      .stderr_path = logs / "err"};
  if (binary == "lodestone-router") options.argv.insert(options.argv.end(), {"--http-port", "0"});
  absl::StatusOr<ChildProcess> process = ChildProcess::Start(options);
  if (!process.ok()) return {process.status().ToString(), ""};
  const steady_clock::time_point until = steady_clock::now() + kLimit;
  Exit exit{"still running", ""};
  while (steady_clock::now() < until) {
    if (const auto ended = process->PollExit()) {
      exit.how = *ended;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::ifstream file(options.stderr_path);
  std::ostringstream text;
  text << file.rdbuf();
  exit.said = text.str();
  return exit;
}

void ExpectRefusal(const std::string& binary, const BadModel& bad) {
  SCOPED_TRACE(binary + " " + bad.name);
  const TempDir dir;
  bad.make(dir.path());
  const Exit exit = Run(binary, dir.path());
  EXPECT_EQ(exit.how, "exit code 1") << exit.said;
  for (const std::string& word : bad.words) {
    // The log is JSON where it is no terminal: quotes are escaped.
    if (word.find('"') != std::string::npos) continue;
    EXPECT_THAT(exit.said, HasSubstr(word));
  }
}

TEST(BadModelTest, TheBinariesExitWithFileAndTensor) {
  const bool all = GetEnvironment("LODESTONE_LONG_TESTS") == "1";
  int number = 0;
  for (const BadModel& bad : BadModels()) {
    if (!all && number++ % kShare != 0) continue;
    ExpectRefusal(number % 2 == 0 ? "lodestone-prefill" : "lodestone-decode", bad);
    if (bad.name.starts_with("Tokenizer")) ExpectRefusal("lodestone-router", bad);
  }
}

}  // namespace
}  // namespace lodestone

// Goal G21: whatever is wrong with a model folder, a worker says so by file and tensor at its
// start.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "tests/testing/bad_models.h"
#include "tests/testing/temp_dir.h"
#include "worker/worker_config.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kLimit{5};

// What a worker does before it listens.
absl::Status Load(const std::string& directory) {
  WorkerConfig config;
  config.model = directory;
  config.threads = 1;
  config.max_context = 1024;
  ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(config, 64));
  return Engine::Create(options).status();
}

class BadModelTest : public testing::TestWithParam<BadModel> {};

TEST_P(BadModelTest, IsRefusedByFileAndTensor) {
  const TempDir dir;
  GetParam().make(dir.path());
  const TimePoint start = RealClock()->Now();
  const absl::Status status = Load(dir.path());
  EXPECT_LT(RealClock()->Now() - start, kLimit);
  EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status)) << status;
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadModelTest, testing::ValuesIn(BadModels()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST(GoodModelTest, IsTaken) {
  const TempDir dir;
  WriteGoodModel(dir.path());
  EXPECT_TRUE(Load(dir.path()).ok()) << Load(dir.path());
}

TEST(BadModelsTest, ThereAreAtLeastSixty) { EXPECT_GE(BadModels().size(), 60u); }

}  // namespace
}  // namespace lodestone

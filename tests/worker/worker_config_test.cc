#include "worker/worker_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using testing::HasSubstr;

WorkerConfig ValidConfig() {
  WorkerConfig config;
  config.model = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
  return config;
}

std::string Refusal(const WorkerConfig& config, int64_t max_batch_tokens = 512) {
  return std::string(ToEngineOptions(config, max_batch_tokens).status().message());
}

TEST(WorkerConfigTest, AutoLeavesTheChoiceToTheEngine) {
  const EngineOptions options = ToEngineOptions(ValidConfig(), 512).value();
  EXPECT_EQ(options.numerics, std::nullopt);
  EXPECT_EQ(options.kv, std::nullopt);
  EXPECT_EQ(options.index_key, std::nullopt);
  EXPECT_EQ(options.max_batch_tokens, 512);
}

TEST(WorkerConfigTest, NamedFormatsReachTheEngine) {
  WorkerConfig config = ValidConfig();
  config.numerics = "reference";
  config.kv = "fp8";
  config.index_k = "fp4";
  const EngineOptions options = ToEngineOptions(config, 512).value();
  EXPECT_EQ(options.numerics, Numerics::kReference);
  EXPECT_EQ(options.kv, KvFormat::kFp8);
  EXPECT_EQ(options.index_key, IndexKeyFormat::kFp4);
}

TEST(WorkerConfigTest, GraphsAreOnUnlessSwitchedOff) {
  WorkerConfig config = ValidConfig();
  EXPECT_TRUE(ToEngineOptions(config, 512).value().cuda_graphs);
  config.cuda_graphs = "off";
  EXPECT_FALSE(ToEngineOptions(config, 512).value().cuda_graphs);
}

TEST(WorkerConfigTest, StagingIsPartOfTheMemoryPlan) {
  WorkerConfig config = ValidConfig();
  config.staging_slot = {1000};
  config.staging_slots = 3;
  EXPECT_EQ(ToEngineOptions(config, 512)->staging_bytes, 3000);
}

TEST(WorkerConfigTest, TheTokenizerHasAFingerprint) {
  EXPECT_EQ(ToEngineOptions(ValidConfig(), 512)->tokenizer_fingerprint.size(), 16u);
}

TEST(WorkerConfigTest, RefusalsNameTheFlagAndItsValue) {
  WorkerConfig config = ValidConfig();
  config.max_sequences = 0;
  EXPECT_THAT(Refusal(config), HasSubstr("--max-sequences is 0"));
  config = ValidConfig();
  config.memory = {0};
  EXPECT_THAT(Refusal(config), HasSubstr("--memory is 0"));
  config = ValidConfig();
  config.staging_slots = -1;
  EXPECT_THAT(Refusal(config), HasSubstr("--staging-slots is -1"));
  config = ValidConfig();
  config.max_context = -5;
  EXPECT_THAT(Refusal(config), HasSubstr("--max-context is -5"));
  for (const int64_t ctas : {0, 24, 64}) {  // NCCL rounds up to a power of two
    config = ValidConfig();
    config.nccl_ctas = ctas;
    EXPECT_THAT(Refusal(config), HasSubstr("--nccl-ctas is " + std::to_string(ctas)));
  }
  for (const int64_t threads : {int64_t{-1}, int64_t{1'000'000}, int64_t{1} << 32}) {
    config = ValidConfig();
    config.threads = threads;
    EXPECT_THAT(Refusal(config), HasSubstr("--threads is " + std::to_string(threads)));
  }
}

TEST(WorkerConfigTest, AMissingModelIsNamed) {
  WorkerConfig config = ValidConfig();
  config.model = "/nonexistent";
  EXPECT_THAT(Refusal(config), HasSubstr("/nonexistent/tokenizer.json"));
}

TEST(WorkerConfigTest, ARouterIsAHostAndAPort) {
  for (const char* good :
       {"127.0.0.1:8081", "localhost:1", "[::1]:65535", "router.svc.local:8081"}) {
    EXPECT_TRUE(CheckRouterAddress(good).ok()) << good;
  }
  for (const char* bad : {"", "localhost", "localhost:", ":8081", "localhost:0", "localhost:65536",
                          "localhost:80x", "::1", "localhost:-1", "http://localhost"}) {
    const absl::Status status = CheckRouterAddress(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + std::string(bad) + "\""));
  }
}

}  // namespace
}  // namespace lodestone

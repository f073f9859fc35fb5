#include "cli/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/inspect.h"
#include "cli/plan.h"
#include "cli/synthesize.h"
#include "model/model_config.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kModel[] = LODESTONE_SOURCE_DIR "/models/needle-tiny";
constexpr char kOverlay[] =
    LODESTONE_SOURCE_DIR "/models/needle-tiny/stress/index-outlier-2e9.safetensors";

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : root_(fs::path(::testing::TempDir()) / "lodestone_convert") {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~ConvertTest() override { fs::remove_all(root_); }

  ConvertConfig Config(const std::string& name, const std::string& form) const {
    ConvertConfig config;
    config.source = kModel;
    config.target = (root_ / name).string();
    config.form = form;
    return config;
  }
  std::string Model(const std::string& name) const { return (root_ / name).string(); }

  const fs::path root_;
};

TEST_F(ConvertTest, BundledModelTakesTheOfficialForm) {
  const auto line = Convert(Config("official", "official"));
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, ContainsRegex("official: [0-9]+ tensors, .* model id [0-9a-f]+"));
  EXPECT_TRUE(fs::exists(root_ / "official" / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(root_ / "official" / "stress"));
  InspectConfig inspect;
  inspect.directory = Model("official");
  const auto text = DescribeCheckpoint(inspect);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, ContainsRegex("matrices +fp8, of routed experts fp4"));
  EXPECT_THAT(*text, ContainsRegex("numerics auto +reference"));
  EXPECT_THAT(*text, ContainsRegex("layers.0.attn.wq_a.scale +F8_E8M0"));
}

TEST_F(ConvertTest, SecondTimeIsRefused) {
  ASSERT_TRUE(Convert(Config("twice", "fp8")).ok());
  const auto again = Convert(Config("twice", "fp8"));
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ConvertTest, OverlayChangesTheModelId) {
  const auto plain = Convert(Config("plain", "official"));
  ConvertConfig with_overlay = Config("stressed", "official");
  with_overlay.overlay = kOverlay;
  const auto stressed = Convert(with_overlay);
  ASSERT_TRUE(plain.ok() && stressed.ok()) << stressed.status();
  const auto id = [](const std::string& line) { return line.substr(line.rfind(' ')); };
  EXPECT_NE(id(*plain), id(*stressed));
}

TEST_F(ConvertTest, PlanCountsTheBytesOfTheCodes) {
  ASSERT_TRUE(Convert(Config("official", "official")).ok());
  const auto weights = [](const std::string& model) {
    PlanConfig config;
    config.model = model;
    config.max_context = 4096;
    const std::string table = *PlanTable(config);
    const size_t at = table.find("weights");
    return table.substr(at, table.find('\n', at) - at);
  };
  EXPECT_THAT(weights(kModel), Not(HasSubstr(weights(Model("official")))));
}

TEST_F(ConvertTest, SynthesizedCheckpointOpensWithItsTokenizer) {
  SynthesizeConfig config;
  config.model_config = std::string(kModel) + "/config.json";
  config.target = Model("synthetic");
  config.tokenizer = kModel;
  const auto line = Synthesize(config);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(fs::exists(root_ / "synthetic" / "tokenizer.json"));
  const auto again = Synthesize(config);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  config.target = Model("other");
  config.seed = 2;
  const auto other = Synthesize(config);
  EXPECT_NE(line->substr(line->rfind(' ')), other->substr(other->rfind(' ')));
}

// The shape that GPU machines benchmark.
TEST(SynthesizeTest, FlashConfigIsOfTheOfficialForm) {
  std::ifstream file(LODESTONE_SOURCE_DIR "/bench/synthetic/flash-4-layers.json");
  std::ostringstream text;
  text << file.rdbuf();
  const auto config = ParseModelConfig(text.str());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->compress_ratios, (std::vector<int64_t>{0, 4, 128, 4}));
  EXPECT_EQ(config->dense_format, WeightFormat::kFp8);
  EXPECT_EQ(config->expert_format, WeightFormat::kFp4);
}

}  // namespace
}  // namespace lodestone

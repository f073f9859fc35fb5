#include "model/model_config.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/format_choice.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/model_runner.h"

namespace lodestone {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

json::object GoodConfig() { return CheckpointFixture().config; }

absl::StatusOr<ModelConfig> Parse(const json::object& config) {
  return ParseModelConfig(json::serialize(config));
}

TEST(ModelConfigTest, ReadsTheBundledModel) {
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(NeedleDirectory());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 5);
  EXPECT_EQ(config->compress_ratios, (std::vector<int64_t>{0, 0, 4, 128, 4}));
  EXPECT_EQ(config->index_top_k, 64);
  EXPECT_EQ(config->max_context_tokens, 1048576);
  EXPECT_EQ(config->eos_ids, std::vector<int32_t>{1});
  EXPECT_FALSE(config->is_quantised());
  EXPECT_EQ(AutoNumerics(*config), Numerics::kPlain);
}

TEST(ModelConfigTest, QuantisedModelsDefaultToReferenceNumerics) {
  json::object config = GoodConfig();
  config["quantization_config"] = json::object{{"quant_method", "fp8"}};
  EXPECT_EQ(AutoNumerics(*Parse(config)), Numerics::kReference);
}

TEST(ModelConfigTest, SurplusRatiosBelongToDraftBlocksAndAreIgnored) {
  json::object config = GoodConfig();
  config["compress_ratios"] = {4, 128, 0, 7, "draft"};
  ASSERT_TRUE(Parse(config).ok());
  EXPECT_EQ(Parse(config)->compress_ratios, (std::vector<int64_t>{4, 128}));
}

TEST(ModelConfigTest, SeveralEndTokensAreKept) {
  json::object config = GoodConfig();
  config["eos_token_id"] = {1, 7};
  EXPECT_EQ(Parse(config)->eos_ids, (std::vector<int32_t>{1, 7}));
}

TEST(ModelConfigTest, FrequenciesFollowTheTwoTables) {
  json::object text = GoodConfig();
  const ModelConfig config = *Parse(text);
  const std::vector<float> plain = WindowFrequencies(config);
  const std::vector<float> stretched = CompressedFrequencies(config);
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1.0f);
  EXPECT_FLOAT_EQ(plain[16], 0.01f);  // 10000^-1/2
  const auto unstretched = [](int i) { return std::pow(160000.0, -2.0 * i / 64); };
  for (int i = 0; i <= 15; ++i) EXPECT_NEAR(stretched[i] / unstretched(i), 1, 1e-6) << i;
  EXPECT_NEAR(stretched[20] / unstretched(20), 0.5 + 0.5 / 16, 1e-6);
  for (int i = 25; i < 32; ++i) EXPECT_NEAR(stretched[i] / unstretched(i), 1.0 / 16, 1e-6) << i;
}

struct BadConfig {
  std::string name;
  std::function<void(json::object&)> spoil;
  std::vector<std::string> words;  // all of them must be in the message
};

class BadConfigTest : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedWithKeyAndValues) {
  json::object config = GoodConfig();
  GetParam().spoil(config);
  const absl::Status status = Parse(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

std::function<void(json::object&)> Set(const std::string& key, const json::value& value) {
  return [key, value](json::object& config) { config[key] = value; };
}
std::function<void(json::object&)> Erase(const std::string& key) {
  return [key](json::object& config) { config.erase(key); };
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigTest,
    ::testing::Values(
        BadConfig{"MissingSize", Erase("hidden_size"), {"hidden_size", "missing"}},
        BadConfig{"MissingRatios", Erase("compress_ratios"), {"compress_ratios", "missing"}},
        BadConfig{"MissingScaling", Erase("rope_scaling"), {"rope_scaling", "missing"}},
        BadConfig{"MissingEnd", Erase("eos_token_id"), {"eos_token_id", "missing"}},
        BadConfig{"TextSize", Set("vocab_size", "32"), {"vocab_size", "\"32\""}},
        BadConfig{"FractionalSize", Set("head_dim", 128.5), {"head_dim", "integer"}},
        BadConfig{
            "NegativeSize", Set("moe_intermediate_size", -16), {"moe_intermediate_size", "-16"}},
        BadConfig{"ZeroSize", Set("num_attention_heads", 0), {"num_attention_heads", "0"}},
        BadConfig{"HugeSize",
                  Set("hidden_size", int64_t{1000000000000000000}),
                  {"hidden_size", "1000000000000000000"}},
        BadConfig{"HugeNumber", Set("vocab_size", 1e300), {"vocab_size"}},
        BadConfig{"TooManyExperts", Set("n_routed_experts", 1 << 20), {"n_routed_experts"}},
        BadConfig{"NoEpsilon", Set("rms_norm_eps", 0), {"rms_norm_eps"}},
        BadConfig{"TextNumber", Set("swiglu_limit", "10"), {"swiglu_limit"}},
        BadConfig{"HeadsNotInGroups",
                  Set("num_attention_heads", 3),
                  {"num_attention_heads", "3", "o_groups", "2"}},
        BadConfig{"RopeBeyondHead", Set("qk_rope_head_dim", 128), {"qk_rope_head_dim", "head_dim"}},
        BadConfig{"RopeBeyondIndexHead",
                  [](json::object& c) { c["index_head_dim"] = 32; },
                  {"qk_rope_head_dim", "64", "index_head_dim", "32"}},
        BadConfig{"OddFp8Group", Set("head_dim", 144), {"head_dim", "144", "64"}},
        BadConfig{"IndexDimNotPowerOfTwo", Set("index_head_dim", 96), {"index_head_dim", "96"}},
        BadConfig{"WindowNotPowerOfTwo", Set("sliding_window", 100), {"sliding_window", "100"}},
        BadConfig{"ExpertsPerToken",
                  Set("num_experts_per_tok", 5),
                  {"num_experts_per_tok", "5", "n_routed_experts", "4"}},
        BadConfig{"HashLayers",
                  Set("num_hash_layers", 3),
                  {"num_hash_layers", "3", "num_hidden_layers", "2"}},
        BadConfig{"ShortRatios",
                  Set("compress_ratios", {4}),
                  {"compress_ratios", "1", "num_hidden_layers", "2"}},
        BadConfig{
            "UnknownRatio", Set("compress_ratios", {4, 8}), {"compress_ratios", "8", "layer 1"}},
        BadConfig{"RatiosNotAList", Set("compress_ratios", 4), {"compress_ratios", "list"}},
        BadConfig{"ScalingNotAnObject", Set("rope_scaling", "yarn"), {"rope_scaling"}},
        BadConfig{"OtherScaling",
                  Set("rope_scaling", json::object{{"type", "linear"}}),
                  {"rope_scaling", "linear", "yarn"}},
        BadConfig{"OriginalBeyondMax",
                  Set("max_position_embeddings", 4096),
                  {"original_max_position_embeddings", "65536", "4096"}},
        BadConfig{"OtherModel", Set("model_type", "llama"), {"model_type", "llama", "deepseek_v4"}},
        BadConfig{"OtherScoring", Set("scoring_func", "softmax"), {"scoring_func", "softmax"}},
        BadConfig{"TwoSharedExperts", Set("n_shared_experts", 2), {"n_shared_experts", "2"}},
        BadConfig{"TiedHead", Set("tie_word_embeddings", true), {"tie_word_embeddings"}},
        BadConfig{"EndBeyondVocabulary", Set("eos_token_id", 32), {"eos_token_id", "32"}},
        BadConfig{"EmptyEndList", Set("eos_token_id", json::array{}), {"eos_token_id", "empty"}}),
    [](const auto& parameter) { return parameter.param.name; });

TEST(ModelConfigTest, RefusesTextThatIsNotJsonOrRepeatsAKey) {
  EXPECT_FALSE(ParseModelConfig("").ok());
  EXPECT_FALSE(ParseModelConfig("[1]").ok());
  EXPECT_FALSE(ParseModelConfig("{\"vocab_size\": 1").ok());
  EXPECT_FALSE(ParseModelConfig(std::string(100000, '[')).ok());
  const absl::Status twice = ParseModelConfig("{\"vocab_size\": 1, \"vocab_size\": 2}").status();
  EXPECT_THAT(std::string(twice.message()), HasSubstr("'vocab_size' occurs twice"));
}

TEST(ModelConfigTest, MissingFileIsNamed) {
  const absl::Status status = LoadModelConfig("/nonexistent").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/config.json"));
}

TEST(FormatChoiceTest, ExactAndF32RowsGoTogether) {
  const ModelConfig config = *Parse(GoodConfig());
  const auto exact = ChooseFormats(config, Numerics::kExact, {}, {});
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->kv, KvFormat::kF32);
  EXPECT_EQ(exact->index_key, IndexKeyFormat::kF32);
  EXPECT_EQ(exact->activation(), DType::kF32);
  EXPECT_FALSE(ChooseFormats(config, Numerics::kExact, KvFormat::kFp8, {}).ok());
  EXPECT_FALSE(ChooseFormats(config, Numerics::kPlain, {}, IndexKeyFormat::kF32).ok());
  const auto automatic = ChooseFormats(config, {}, {}, IndexKeyFormat::kFp8);
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->numerics, Numerics::kPlain);
  EXPECT_EQ(automatic->kv, KvFormat::kBf16);
}

}  // namespace
}  // namespace lodestone

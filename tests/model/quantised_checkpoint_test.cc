#include <functional>
#include <string>
#include <vector>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/weights.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/temp_dir.h"

// Checkpoints in the official form that are damaged, or do not match their config.
namespace lodestone {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr char kShard[] = "model-00001-of-00001.safetensors";

// The fixture with FP8 matrices and FP4 experts, all zeros.
CheckpointFixture OfficialFixture() {
  CheckpointFixture fixture;
  fixture.config["moe_intermediate_size"] = 32;
  fixture.config["expert_dtype"] = "fp4";
  fixture.config["quantization_config"] = {{"quant_method", "fp8"}};
  fixture.shards.clear();
  fixture.weight_map.clear();
  const ModelConfig config = *ParseModelConfig(json::serialize(fixture.config));
  for (const TensorSpec& spec : TensorInventory(config)) {
    fixture.shards[kShard][spec.name] = RawTensor::Zeros(std::string(Name(spec.dtype)), spec.shape);
    fixture.weight_map[spec.name] = kShard;
  }
  return fixture;
}

absl::Status Load(const CheckpointFixture& fixture) {
  const TempDir dir;
  fixture.Write(dir.path());
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path(), {});
  if (!checkpoint.ok()) return checkpoint.status();
  return LoadWeights(checkpoint->config(), *checkpoint, TestBackend("cpu"), nullptr).status();
}

TEST(QuantisedCheckpointTest, Loads) { EXPECT_TRUE(Load(OfficialFixture()).ok()); }

TEST(QuantisedCheckpointTest, ScalesFollowTheirMatrixInTheInventory) {
  const ModelConfig config = *ParseModelConfig(json::serialize(OfficialFixture().config));
  const std::vector<TensorSpec> specs = TensorInventory(config);
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool quantised = IsQuantised(specs[i].matrix.format);
    if (quantised) {
      EXPECT_EQ(specs[i + 1].name, ScaleName(specs[i].name));
    }
    EXPECT_EQ(specs[i].kind == TensorSpec::Kind::kScale,
              i > 0 && IsQuantised(specs[i - 1].matrix.format))
        << specs[i].name;
  }
}

struct Damage {
  std::string name;
  std::function<void(CheckpointFixture&)> spoil;
  std::vector<std::string> words;
};

class DamagedFormTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedFormTest, IsRefusedByName) {
  CheckpointFixture fixture = OfficialFixture();
  GetParam().spoil(fixture);
  const absl::Status status = Load(fixture);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

RawTensor& Tensor(CheckpointFixture& fixture, const std::string& name) {
  return fixture.shards[kShard].at(name);
}

using Fixture = CheckpointFixture;

INSTANTIATE_TEST_SUITE_P(
    All, DamagedFormTest,
    ::testing::Values(
        Damage{"NanCode",
               [](Fixture& f) { Tensor(f, "layers.1.attn.wq_b.weight").bytes[9] = '\xff'; },
               {kShard, "layers.1.attn.wq_b.weight", "1 NaN"}},
        Damage{"NanScaleOfFp8",
               [](Fixture& f) { Tensor(f, "layers.1.attn.wo_a.scale").bytes[0] = '\xff'; },
               {kShard, "layers.1.attn.wo_a.scale", "1 NaN"}},
        Damage{"NanScaleOfFp4",
               [](Fixture& f) { Tensor(f, "layers.0.ffn.experts.3.w2.scale").bytes[5] = '\xff'; },
               {"layers.0.ffn.experts.3.w2.scale", "1 NaN"}},
        Damage{"MissingScale",
               [](Fixture& f) {
                 f.shards[kShard].erase("layers.0.attn.wkv.scale");
                 f.weight_map.erase("layers.0.attn.wkv.scale");
               },
               {"layers.0.attn.wkv.scale", "missing", "F8_E8M0[1, 1]"}},
        Damage{"ScalePerRowInsteadOfPerTile",
               [](Fixture& f) {
                 Tensor(f, "layers.0.attn.wkv.scale") = RawTensor::Zeros("F8_E8M0", {128, 1});
               },
               {"layers.0.attn.wkv.scale", "F8_E8M0[128, 1]", "F8_E8M0[1, 1]"}},
        Damage{"ScaleInF32",
               [](Fixture& f) {
                 Tensor(f, "layers.0.attn.wkv.scale") = RawTensor::Zeros("F32", {1, 1});
               },
               {"layers.0.attn.wkv.scale", "F32[1, 1]"}},
        Damage{"Bf16MatrixInAnFp8Model",
               [](Fixture& f) {
                 Tensor(f, "layers.0.attn.wkv.weight") = RawTensor::Zeros("BF16", {128, 32});
               },
               {"layers.0.attn.wkv.weight", "BF16[128, 32]", "F8_E4M3[128, 32]"}},
        // As in some copies of the official config.
        Damage{"ConfigThatForgetsFp4",
               [](Fixture& f) { f.config.erase("expert_dtype"); },
               {"layers.0.ffn.experts.0.w1.weight", "I8[32, 16]", "expert_dtype \"fp4\""}},
        Damage{"ConfigThatForgetsFp8",
               [](Fixture& f) { f.config.erase("quantization_config"); },
               {"layers.0.attn.wq_a.weight", "F8_E4M3", "quantization_config"}},
        Damage{"OtherTiles",
               [](Fixture& f) {
                 f.config["quantization_config"].as_object()["weight_block_size"] = {64, 64};
               },
               {"config.json", "quantization_config", "weight_block_size", "[64,64]", "[128,128]"}},
        Damage{"OtherCodes",
               [](Fixture& f) { f.config["quantization_config"].as_object()["fmt"] = "e5m2"; },
               {"quantization_config", "fmt", "e5m2"}},
        Damage{"OtherMethod",
               [](Fixture& f) {
                 f.config["quantization_config"] = {{"quant_method", "awq"}};
               },
               {"quantization_config", "quant_method", "awq"}},
        Damage{"OtherExperts",
               [](Fixture& f) { f.config["expert_dtype"] = "int4"; },
               {"expert_dtype", "int4"}},
        Damage{"ExpertsTooNarrowForFp4",
               [](Fixture& f) { f.config["moe_intermediate_size"] = 48; },
               {"moe_intermediate_size", "48", "32"}}),
    [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace lodestone

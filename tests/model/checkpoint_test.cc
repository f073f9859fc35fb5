#include "model/checkpoint.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/model_runner.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

constexpr char kFirst[] = "model-00001-of-00002.safetensors";
constexpr char kSecond[] = "model-00002-of-00002.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

std::string IdOf(const std::string& directory, const CheckpointOptions& options = {}) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory, options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? checkpoint->model_id() : "";
}

TEST(CheckpointTest, OpensShardsAndSingleFile) {
  const TempDir sharded, single;
  CheckpointFixture().Write(sharded.path());
  CheckpointFixture().WriteSingle(single.path());
  for (const std::string& directory : {sharded.path(), single.path()}) {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory, {});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->Find("embed.weight").ShapeString(), "BF16[32, 32]");
    EXPECT_EQ(checkpoint->Find("layers.0.ffn.gate.tid2eid").as<const uint8_t>()[2 * 8], 1);
  }
}

TEST(CheckpointTest, OpensTheBundledModel) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(NeedleDirectory(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->Entries().size(), 255u);
  EXPECT_EQ(checkpoint->model_id().size(), 64u);
}

TEST(CheckpointTest, DraftTensorsAreSkipped) {
  const TempDir dir;
  CheckpointFixture fixture;
  fixture.shards[kSecond]["mtp.0.e_proj.weight"] = RawTensor::Zeros("F8_E4M3", {32, 32});
  fixture.weight_map["mtp.0.e_proj.weight"] = kSecond;
  fixture.Write(dir.path());
  EXPECT_TRUE(Checkpoint::Open(dir.path(), {}).ok());
}

struct BadCheckpoint {
  std::string name;
  std::function<void(CheckpointFixture&)> spoil;
  std::vector<std::string> words;  // file and tensor
};

class BadCheckpointTest : public ::testing::TestWithParam<BadCheckpoint> {};

TEST_P(BadCheckpointTest, IsRefusedWithFileAndTensorNamed) {
  const TempDir dir;
  CheckpointFixture fixture;
  GetParam().spoil(fixture);
  fixture.Write(dir.path());
  const absl::Status status = Checkpoint::Open(dir.path(), {}).status();
  EXPECT_FALSE(status.ok());
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

void Remove(CheckpointFixture& fixture, const std::string& name) {
  fixture.shards[fixture.weight_map.at(name)].erase(name);
  fixture.weight_map.erase(name);
}
void Replace(CheckpointFixture& fixture, const std::string& name, const RawTensor& tensor) {
  fixture.shards[fixture.weight_map.at(name)][name] = tensor;
}
void Add(CheckpointFixture& fixture, const std::string& name, const std::string& dtype,
         const std::vector<int64_t>& shape) {
  fixture.shards[kFirst][name] = RawTensor::Zeros(dtype, shape);
  fixture.weight_map[name] = kFirst;
}

using Fixture = CheckpointFixture;

INSTANTIATE_TEST_SUITE_P(
    All, BadCheckpointTest,
    ::testing::Values(
        BadCheckpoint{"MissingTensor",
                      [](Fixture& f) { Remove(f, "layers.1.attn.wkv.weight"); },
                      {kIndex, "layers.1.attn.wkv.weight", "missing"}},
        BadCheckpoint{"MissingSink",
                      [](Fixture& f) { Remove(f, "layers.0.attn.attn_sink"); },
                      {"layers.0.attn.attn_sink", "missing"}},
        BadCheckpoint{"MissingHashTable",
                      [](Fixture& f) { Remove(f, "layers.0.ffn.gate.tid2eid"); },
                      {"layers.0.ffn.gate.tid2eid", "missing"}},
        BadCheckpoint{"MissingIndexerCompressor",
                      [](Fixture& f) { Remove(f, "layers.0.attn.indexer.compressor.ape"); },
                      {"layers.0.attn.indexer.compressor.ape", "missing"}},
        BadCheckpoint{"SurplusTensor",
                      [](Fixture& f) { Add(f, "layers.0.attn.extra", "F32", {3}); },
                      {kFirst, "layers.0.attn.extra", "surplus"}},
        BadCheckpoint{"SurplusLayer",
                      [](Fixture& f) { Add(f, "layers.2.attn_norm.weight", "BF16", {32}); },
                      {"layers.2.attn_norm.weight", "surplus"}},
        BadCheckpoint{"SurplusBias",
                      [](Fixture& f) { Add(f, "layers.0.ffn.gate.bias", "F32", {4}); },
                      {"layers.0.ffn.gate.bias", "surplus"}},
        BadCheckpoint{"Transposed",
                      [](Fixture& f) {
                        Replace(f, "layers.0.attn.wq_a.weight", RawTensor::Zeros("BF16", {32, 16}));
                      },
                      {kFirst, "layers.0.attn.wq_a.weight", "BF16[32, 16]", "BF16[16, 32]"}},
        BadCheckpoint{
            "ShortVector",
            [](Fixture& f) { Replace(f, "layers.1.ffn.gate.bias", RawTensor::Zeros("F32", {3})); },
            {kSecond, "layers.1.ffn.gate.bias", "F32[3]", "F32[4]"}},
        BadCheckpoint{"ExtraAxis",
                      [](Fixture& f) {
                        Replace(f, "norm.weight", RawTensor::Zeros("BF16", {32, 1}));
                      },
                      {"norm.weight", "BF16[32, 1]", "BF16[32]"}},
        BadCheckpoint{"NormInF32",
                      [](Fixture& f) { Replace(f, "norm.weight", RawTensor::Zeros("F32", {32})); },
                      {kFirst, "norm.weight", "F32[32]", "BF16[32]"}},
        BadCheckpoint{"SinkInBf16",
                      [](Fixture& f) {
                        Replace(f, "layers.1.attn.attn_sink", RawTensor::Zeros("BF16", {2}));
                      },
                      {"layers.1.attn.attn_sink", "BF16[2]", "F32[2]"}},
        BadCheckpoint{"HashTableInI32",
                      [](Fixture& f) {
                        Replace(f, "layers.0.ffn.gate.tid2eid", RawTensor::Zeros("I32", {32, 2}));
                      },
                      {"layers.0.ffn.gate.tid2eid", "I32[32, 2]", "I64[32, 2]"}},
        BadCheckpoint{
            "Fp8Weight",
            [](Fixture& f) {
              Replace(f, "layers.1.attn.wq_a.weight", RawTensor::Zeros("F8_E4M3", {16, 32}));
            },
            {kSecond, "layers.1.attn.wq_a.weight", "F8_E4M3", "FP8"}},
        BadCheckpoint{"Fp8Scale",
                      [](Fixture& f) {
                        Add(f, "layers.0.attn.wq_a.scale", "F8_E8M0", {1, 1});
                      },
                      {"layers.0.attn.wq_a.scale", "F8_E8M0", "FP8"}},
        BadCheckpoint{
            "Fp4Expert",
            [](Fixture& f) {
              Replace(f, "layers.0.ffn.experts.0.w1.weight", RawTensor::Zeros("I8", {16, 16}));
            },
            {"layers.0.ffn.experts.0.w1.weight", "I8", "FP4"}},
        BadCheckpoint{"ConfigOfAnotherModel",
                      [](Fixture& f) { f.config["hidden_size"] = 64; },
                      {"embed.weight", "BF16[32, 32]", "BF16[32, 64]"}},
        BadCheckpoint{"OtherRatios",
                      [](Fixture& f) {
                        f.config["compress_ratios"] = {128, 128};
                      },
                      {"compressor", "layers.0"}},
        BadCheckpoint{"ContradictoryConfig",
                      [](Fixture& f) { f.config["o_groups"] = 4; },
                      {"config.json", "num_attention_heads", "o_groups"}},
        BadCheckpoint{"TensorNotInIndex",
                      [](Fixture& f) { f.weight_map.erase("head.weight"); },
                      {kFirst, "head.weight", "not in", kIndex}},
        BadCheckpoint{"IndexNamesOtherShard",
                      [](Fixture& f) { f.weight_map["head.weight"] = kSecond; },
                      {kFirst, "head.weight", kSecond}},
        BadCheckpoint{"IndexNamesAbsentTensor",
                      [](Fixture& f) { f.shards[kFirst].erase("head.weight"); },
                      {kFirst, "head.weight", "missing"}},
        BadCheckpoint{"IndexNamesAbsentShard",
                      [](Fixture& f) { f.weight_map["head.weight"] = "none.safetensors"; },
                      {"head.weight", "none.safetensors"}},
        BadCheckpoint{
            "TensorInBothShards",
            [](Fixture& f) { f.shards[kSecond]["head.weight"] = f.shards[kFirst]["head.weight"]; },
            {kSecond, "head.weight", kFirst}},
        BadCheckpoint{
            "ShardOutsideFolder",
            [](Fixture& f) { f.weight_map["head.weight"] = "../other/model.safetensors"; },
            {kIndex, "head.weight", "../other"}},
        BadCheckpoint{"ShardIsAbsolute",
                      [](Fixture& f) { f.weight_map["head.weight"] = "/etc/passwd"; },
                      {kIndex, "head.weight", "/etc/passwd"}},
        BadCheckpoint{"ShardIsParent",
                      [](Fixture& f) { f.weight_map["head.weight"] = ".."; },
                      {kIndex, "head.weight"}},
        BadCheckpoint{"EmptyIndex", [](Fixture& f) { f.weight_map.clear(); }, {kIndex, "empty"}}),
    [](const auto& parameter) { return parameter.param.name; });

TEST(CheckpointTest, TruncatedShardIsNamed) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  const std::string bytes = ReadFileBytes(dir / kSecond);
  WriteFile(dir / kSecond, std::string_view(bytes).substr(0, bytes.size() - 1));
  const std::string message(Checkpoint::Open(dir.path(), {}).status().message());
  EXPECT_THAT(message, HasSubstr(kSecond));
  EXPECT_THAT(message, HasSubstr("truncated"));
  EXPECT_THAT(message, HasSubstr("tensor 'layers.1."));
}

TEST(CheckpointTest, AbsentShardIsNamed) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  std::filesystem::remove(dir / kSecond);
  const absl::Status status = Checkpoint::Open(dir.path(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kSecond));
}

TEST(CheckpointTest, IndexThatIsNoIndexIsNamed) {
  for (const std::string text : {"", "{}", "{\"weight_map\": []}", "{\"weight_map\": {\"x\": 3}}",
                                 "{\"weight_map\": {\"x\": \"a\", \"x\": \"b\"}}"}) {
    const TempDir dir;
    CheckpointFixture().Write(dir.path());
    WriteFile(dir / kIndex, text);
    EXPECT_THAT(std::string(Checkpoint::Open(dir.path(), {}).status().message()), HasSubstr(kIndex))
        << text;
  }
}

TEST(CheckpointTest, FolderWithoutWeightsIsNamed) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());
  std::filesystem::remove(dir / kIndex);
  const std::string message(Checkpoint::Open(dir.path(), {}).status().message());
  EXPECT_THAT(message, HasSubstr(dir.path()));
  EXPECT_THAT(message, HasSubstr("neither"));
}

class OverlayTest : public ::testing::Test {
 protected:
  OverlayTest() { CheckpointFixture().Write(dir_.path()); }
  absl::StatusOr<Checkpoint> OpenWith(const std::map<std::string, RawTensor>& tensors) {
    WriteFile(dir_ / "overlay.safetensors", SafetensorsBytes(tensors));
    return Checkpoint::Open(dir_.path(), {.overlay = dir_ / "overlay.safetensors"});
  }
  const TempDir dir_;
};

TEST_F(OverlayTest, ReplacesTensorsAndChangesTheId) {
  RawTensor sink = RawTensor::Zeros("F32", {2});
  const std::string plain_id = IdOf(dir_.path());
  const auto zeros = OpenWith({{"layers.0.attn.attn_sink", sink}});
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_NE(zeros->model_id(), plain_id);
  sink.bytes[3] = 0x40;  // 2.0f
  const auto replaced = OpenWith({{"layers.0.attn.attn_sink", sink}});
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->Find("layers.0.attn.attn_sink").as<float>()[0], 2.0f);
  EXPECT_THAT(replaced->FileOf("layers.0.attn.attn_sink"), HasSubstr("overlay.safetensors"));
  EXPECT_NE(replaced->model_id(), zeros->model_id());
}

TEST_F(OverlayTest, OtherShapeTypeOrNameIsRefused) {
  const auto shape = OpenWith({{"layers.0.attn.attn_sink", RawTensor::Zeros("F32", {3})}});
  EXPECT_THAT(std::string(shape.status().message()),
              HasSubstr("F32[3], the checkpoint has F32[2]"));
  const auto type = OpenWith({{"layers.0.attn.attn_sink", RawTensor::Zeros("BF16", {2})}});
  EXPECT_THAT(std::string(type.status().message()),
              HasSubstr("BF16[2], the checkpoint has F32[2]"));
  const auto name = OpenWith({{"layers.7.attn.attn_sink", RawTensor::Zeros("F32", {2})}});
  EXPECT_THAT(std::string(name.status().message()), HasSubstr("'layers.7.attn.attn_sink'"));
  EXPECT_EQ(Checkpoint::Open(dir_.path(), {.overlay = dir_ / "none"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ModelIdTest, DependsOnConfigAndHeadersAndOnBytesWhenVerified) {
  const TempDir original, other_config, other_bytes;
  CheckpointFixture fixture;
  fixture.Write(original.path());
  EXPECT_EQ(IdOf(original.path()), IdOf(original.path()));

  CheckpointFixture with_theta = fixture;
  with_theta.config["rope_theta"] = 20000;
  with_theta.Write(other_config.path());
  EXPECT_NE(IdOf(original.path()), IdOf(other_config.path()));

  CheckpointFixture with_value = fixture;
  with_value.shards[kFirst]["head.weight"].bytes[0] = 1;
  with_value.Write(other_bytes.path());
  EXPECT_EQ(IdOf(original.path()), IdOf(other_bytes.path()));
  EXPECT_NE(IdOf(original.path(), {.overlay = "", .verify_weights = true}),
            IdOf(other_bytes.path(), {.overlay = "", .verify_weights = true}));
}

}  // namespace
}  // namespace lodestone

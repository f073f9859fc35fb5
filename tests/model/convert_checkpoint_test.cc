#include "model/convert_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "boost/json/object.hpp"
#include "boost/json/parse.hpp"
#include "boost/json/serialize.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/numeric/weight_codec.h"
#include "model/strict_json.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

absl::Status TryConvert(const std::string& from, const std::string& to, const std::string& form) {
  const absl::StatusOr<Checkpoint> source = Checkpoint::Open(from, {});
  if (!source.ok()) return source.status();
  const std::string text = *ReadTextFile(from + "/config.json");
  absl::StatusOr<CheckpointWriter> writer = CheckpointWriter::Create(
      to, *ConfigInForm(text, *ParseWeightForm(form)), {{"converted_from", source->model_id()}});
  if (!writer.ok()) return writer.status();
  ThreadPool pool(2);
  const absl::Status status = ConvertCheckpoint(*source, *writer, pool, nullptr);
  return status.ok() ? writer->Finish() : status;
}

Checkpoint Converted(const std::string& from, const std::string& to, const std::string& form) {
  const absl::Status status = TryConvert(from, to, form);
  EXPECT_TRUE(status.ok()) << status;
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(to, {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

// The numbers of every matrix, by name.
std::vector<float> Numbers(const Checkpoint& checkpoint, const TensorSpec& spec) {
  MatrixSource source{spec.matrix, checkpoint.Find(spec.name), {}};
  std::vector<std::byte> copy(static_cast<size_t>(source.values.num_bytes()));
  std::memcpy(copy.data(), source.values.data, copy.size());
  source.values.data = copy.data();
  if (IsQuantised(spec.matrix.format)) source.scales = checkpoint.Find(ScaleName(spec.name));
  std::vector<float> numbers(
      static_cast<size_t>(spec.matrix.groups * spec.matrix.n * spec.matrix.k));
  for (int64_t row = 0; row < spec.matrix.groups * spec.matrix.n; ++row) {
    WidenWeightRow(source, row, numbers.data() + row * spec.matrix.k);
  }
  return numbers;
}

bool SameBytes(const TensorView& a, const TensorView& b) {
  return a.ShapeString() == b.ShapeString() &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.num_bytes())) == 0;
}

TEST(ConvertCheckpointTest, OfficialFormIsCloseAndKeepsTheRest) {
  const TempDir dir;
  const Checkpoint source = *Checkpoint::Open(MiniDirectory(), {});
  const Checkpoint target = Converted(MiniDirectory(), dir / "out", "official");
  EXPECT_EQ(target.config().dense_format, WeightFormat::kFp8);
  EXPECT_EQ(target.config().expert_format, WeightFormat::kFp4);
  EXPECT_NE(target.model_id(), source.model_id());
  const std::vector<TensorSpec> specs = TensorInventory(target.config());
  int num_fp8 = 0, num_fp4 = 0;
  for (const TensorSpec& to : specs) {
    if (to.kind == TensorSpec::Kind::kScale) continue;
    if (to.kind != TensorSpec::Kind::kMatrix || !IsQuantised(to.matrix.format)) {
      EXPECT_TRUE(SameBytes(source.Find(to.name), target.Find(to.name))) << to.name;
      continue;
    }
    const bool fp8 = to.matrix.format == WeightFormat::kFp8;
    ++(fp8 ? num_fp8 : num_fp4);
    TensorSpec from = to;
    from.dtype = DType::kBf16;
    from.matrix.format = WeightFormat::kBf16;
    // Rounding to three mantissa bits, or to the eight magnitudes of e2m1.
    EXPECT_LE(RelativeL2(Numbers(target, to), Numbers(source, from)), fp8 ? 0.03 : 0.15) << to.name;
  }
  EXPECT_EQ(num_fp8, 4 * 5 + 2 + 4 * 3);  // attention, index queries, shared experts
  EXPECT_EQ(num_fp4, 4 * 6 * 3);
}

// Numbers that are in the format already stay what they are, on any path.
TEST(ConvertCheckpointTest, QuantisedNumbersSurviveBf16AndBack) {
  const TempDir dir;
  const std::string official = GoldenPath("reference/mini-fp8");
  const Checkpoint source = *Checkpoint::Open(official, {});
  const Checkpoint wide = Converted(official, dir / "bf16", "bf16");
  const Checkpoint again = Converted(dir / "bf16", dir / "official", "official");
  EXPECT_FALSE(wide.config().is_quantised());
  for (const TensorSpec& spec : TensorInventory(source.config())) {
    if (spec.kind != TensorSpec::Kind::kMatrix) continue;
    EXPECT_EQ(Numbers(again, spec), Numbers(source, spec)) << spec.name;
  }
}

TEST(ConvertCheckpointTest, SameFormIsCopiedByteForByte) {
  const TempDir dir;
  const std::string official = GoldenPath("reference/mini-fp8");
  const Checkpoint source = *Checkpoint::Open(official, {});
  const Checkpoint copy = Converted(official, dir / "copy", "official");
  for (const TensorSpec& spec : TensorInventory(source.config())) {
    EXPECT_TRUE(SameBytes(source.Find(spec.name), copy.Find(spec.name))) << spec.name;
  }
  EXPECT_EQ(copy.Entries().size(), source.Entries().size());
}

TEST(ConvertCheckpointTest, ConfigHasTheOfficialKeysAndKeepsTheOthers) {
  const std::string text = R"({"hidden_size": 256, "quantization_config": {"x": 1}, "z": [1, 2]})";
  const auto form = [&](const std::string& name) {
    return boost::json::parse(*ConfigInForm(text, *ParseWeightForm(name))).as_object();
  };
  const boost::json::object official = form("official");
  EXPECT_EQ(official.at("expert_dtype"), "fp4");
  EXPECT_EQ(official.at("quantization_config"),
            boost::json::parse(R"({"activation_scheme": "dynamic", "fmt": "e4m3",
                "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]})"));
  EXPECT_EQ(official.at("z"), boost::json::parse("[1, 2]"));
  EXPECT_EQ(form("fp8").at("expert_dtype"), "fp8");
  EXPECT_EQ(form("fp4").at("expert_dtype"), "fp4");
  EXPECT_FALSE(form("fp4").contains("quantization_config"));
  EXPECT_EQ(form("bf16").at("expert_dtype"), "bf16");
  EXPECT_FALSE(ParseWeightForm("int8").ok());
}

TEST(ConvertCheckpointTest, NothingIsOverwritten) {
  const TempDir dir;
  WriteFile(dir / "precious", "x");
  const absl::Status status = TryConvert(MiniDirectory(), dir.path(), "fp8");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path()));
  EXPECT_EQ(TryConvert(MiniDirectory(), dir / "precious", "fp8").code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFileBytes(dir / "precious"), "x");
}

TEST(ConvertCheckpointTest, WidthThatFp4CannotHoldIsNamed) {
  const TempDir dir;
  CheckpointFixture().Write(dir.path());  // experts 16 wide
  const absl::Status status = TryConvert(dir.path(), dir / "out", "fp4");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("moe_intermediate_size"));
}

TEST(ConvertCheckpointTest, WeightThatIsNotFiniteIsNamed) {
  const TempDir dir;
  CheckpointFixture fixture;
  for (auto& [shard, tensors] : fixture.shards) {
    const auto place = tensors.find("layers.1.attn.wkv.weight");
    if (place == tensors.end()) continue;
    place->second.bytes[7] = '\x7f';  // an infinity or NaN in bf16
    place->second.bytes[6] = '\x80';
  }
  fixture.Write(dir.path());
  const absl::Status status = TryConvert(dir.path(), dir / "out", "fp8");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.1.attn.wkv.weight"));
  EXPECT_FALSE(Checkpoint::Open(dir / "out", {}).ok());  // no config.json
}

// The bundled model in the official form still answers its needle prompts, with all of the vendor's
// rounding.
TEST(ConvertCheckpointTest, BundledModelInOfficialFormFindsItsNeedles) {
  const TempDir dir;
  Converted(NeedleDirectory(), dir / "out", "official");
  const LoadedModel model(dir / "out", TestBackend("cpu"));
  for (const int64_t length : {511, 1027}) {
    const GoldenCase golden = ExactGolden("needle-tiny", length);
    ModelRunner runner(model, model.ops, {.numerics = AutoNumerics(model.config)},
                       {.num_seqs = 1, .max_context = length + 16, .max_tokens = 512});
    const GoldenRun run = RunGoldenCase(runner, golden, 512);
    const std::vector<int32_t> ids = golden.Ids("greedy.ids");
    const auto rows = static_cast<int64_t>(ids.size()) - 1;
    EXPECT_EQ(Argmax(run.logits_last, model.config.vocab_size, 3), ids[0]);
    for (int64_t step = 0; step < rows; ++step) {
      EXPECT_EQ(Argmax(run.greedy_logits, model.config.vocab_size, step),
                ids[static_cast<size_t>(step) + 1])
          << length << " step " << step;
      if (ids[static_cast<size_t>(step) + 1] == model.config.eos_ids[0]) break;
    }
  }
}

}  // namespace
}  // namespace lodestone

#include "model/synthetic_checkpoint.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "gtest/gtest.h"
#include "kernels/numeric/weight_codec.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

namespace json = boost::json;

// The official form at small dims: ratios 0, 4, 128, 4; two layers routed by hash, two by bias.
std::string OfficialConfig() {
  json::object config = CheckpointFixture().config;
  config["hidden_size"] = 256;
  config["num_hidden_layers"] = 4;
  config["compress_ratios"] = {0, 4, 128, 4};
  config["num_attention_heads"] = 4;
  config["q_lora_rank"] = 160;
  config["o_lora_rank"] = 40;
  config["num_hash_layers"] = 2;
  config["n_routed_experts"] = 9;
  config["num_experts_per_tok"] = 3;
  config["moe_intermediate_size"] = 96;
  config["expert_dtype"] = "fp4";
  config["quantization_config"] = {{"quant_method", "fp8"}};
  return json::serialize(config);
}

void Write(const std::string& directory, const std::string& config, uint64_t seed,
           int num_threads) {
  absl::StatusOr<CheckpointWriter> writer = CheckpointWriter::Create(directory, config, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ThreadPool pool(num_threads);
  ASSERT_TRUE(WriteSyntheticTensors(seed, *writer, pool, nullptr).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

std::string IdOf(const std::string& directory) {
  return Checkpoint::Open(directory, {.overlay = "", .verify_weights = true})->model_id();
}

TEST(SyntheticCheckpointTest, FollowsFromTheSeed) {
  const TempDir dir;
  Write(dir / "a", OfficialConfig(), 7, 1);
  Write(dir / "b", OfficialConfig(), 7, 3);
  Write(dir / "c", OfficialConfig(), 8, 3);
  EXPECT_EQ(IdOf(dir / "a"), IdOf(dir / "b"));
  EXPECT_NE(IdOf(dir / "a"), IdOf(dir / "c"));
}

TEST(SyntheticCheckpointTest, WeightsAreWellScaled) {
  const TempDir dir;
  Write(dir / "out", OfficialConfig(), 1, 2);
  const Checkpoint checkpoint = *Checkpoint::Open(dir / "out", {});
  for (const TensorSpec& spec : TensorInventory(checkpoint.config())) {
    if (spec.kind != TensorSpec::Kind::kMatrix) continue;
    MatrixSource source{spec.matrix, checkpoint.Find(spec.name), {}};
    std::set<uint8_t> scales;
    if (IsQuantised(spec.matrix.format)) {
      source.scales = checkpoint.Find(ScaleName(spec.name));
      const auto* bytes = source.scales.as<uint8_t>();
      scales.insert(bytes, bytes + source.scales.num_elements());
    }
    double square = 0;
    std::vector<float> row(static_cast<size_t>(spec.matrix.k));
    const int64_t rows = spec.matrix.groups * spec.matrix.n;
    for (int64_t r = 0; r < rows; ++r) {
      WidenWeightRow(source, r, row.data());
      for (const float value : row) square += static_cast<double>(value) * value;
    }
    const double deviation = std::sqrt(square / static_cast<double>(rows));  // times sqrt(k)
    // Scales are powers of two, and vary.
    EXPECT_NEAR(std::log2(deviation), 0, IsQuantised(spec.matrix.format) ? 1.2 : 0.2) << spec.name;
    if (spec.matrix.format == WeightFormat::kFp4) {
      EXPECT_EQ(scales.size(), 3u) << spec.name;
    }
  }
}

TEST(SyntheticCheckpointTest, HashTablesNameDifferentExperts) {
  const TempDir dir;
  Write(dir / "out", OfficialConfig(), 1, 2);
  const Checkpoint checkpoint = *Checkpoint::Open(dir / "out", {});
  std::set<int64_t> used;
  for (const std::string layer : {"0", "1"}) {
    const TensorView table = checkpoint.Find("layers." + layer + ".ffn.gate.tid2eid");
    for (int64_t token = 0; token < table.shape[0]; ++token) {
      const std::set<int64_t> experts(table.row<int64_t>(token), table.row<int64_t>(token) + 3);
      EXPECT_EQ(experts.size(), 3u);
      used.insert(experts.begin(), experts.end());
    }
  }
  EXPECT_EQ(used.size(), 9u);
}

// The ordinary loader, a prompt beyond the window and several decode steps: values neither die nor
// explode, and the two backends agree.
TEST(SyntheticCheckpointTest, RunsAPromptOnBothBackends) {
  const TempDir dir;
  Write(dir / "out", OfficialConfig(), 3, 2);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 140; ++i) ids.push_back((i * 7 + i / 5) % 32);
  std::vector<std::vector<float>> logits;
  for (const std::string backend : {"cpu", "reference"}) {
    const LoadedModel model(dir / "out", TestBackend(backend));
    for (const FormatChoice formats :
         {kExactFormats, FormatChoice{.numerics = Numerics::kReference}}) {
      ModelRunner runner(model, model.ops, formats,
                         {.num_seqs = 1, .max_context = 256, .max_tokens = 64});
      logits.push_back(runner.Prefill(ids, 64, 4));
      double square = 0;
      for (const float value : logits.back()) square += static_cast<double>(value) * value;
      const double size = std::sqrt(square / static_cast<double>(logits.back().size()));
      EXPECT_GT(size, 0.2);
      EXPECT_LT(size, 5);
    }
  }
  EXPECT_LE(RelativeL2(logits[0], logits[2]), 1e-4);  // exact
  EXPECT_LE(RelativeL2(logits[1], logits[3]), 0.2);   // reference: rounding amplifies
}

}  // namespace
}  // namespace lodestone

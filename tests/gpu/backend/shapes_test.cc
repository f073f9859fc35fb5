#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>

#include "base/thread_pool.h"
#include "model/checkpoint_writer.h"
#include "model/synthetic_checkpoint.h"
#include "tests/gpu/backend/layer_comparison.h"
#include "tests/testing/temp_dir.h"

// Whole models of other shapes than the official ones, on the GPU against the CPU: the smallest that a
// config.json may describe, odd ones, and the widest.
namespace lodestone {
namespace {

struct Shape {
  const char* name;
  int hidden, heads, q_rank, groups, o_rank, index_heads, index_top_k, experts, chosen, width;
  bool quantised;
};

const Shape kShapes[] = {
    {"Smallest", 128, 4, 32, 2, 32, 4, 16, 4, 1, 32, false},
    {"Odd", 672, 20, 96, 4, 160, 12, 48, 12, 3, 96, false},
    {"OddQuantised", 672, 20, 96, 4, 160, 12, 48, 12, 3, 96, true},
    {"Pro", 7168, 128, 1536, 16, 1024, 64, 1024, 16, 6, 512, false},
    {"ProQuantised", 7168, 128, 1536, 16, 1024, 64, 1024, 16, 6, 512, true},
};

std::string ConfigOf(const Shape& shape) {
  std::ifstream file(LODESTONE_SOURCE_DIR "/bench/synthetic/flash-4-layers.json");
  std::stringstream text;
  text << file.rdbuf();
  boost::json::object config = boost::json::parse(text.str()).as_object();
  config["hidden_size"] = shape.hidden;
  config["num_attention_heads"] = shape.heads;
  config["q_lora_rank"] = shape.q_rank;
  config["o_groups"] = shape.groups;
  config["o_lora_rank"] = shape.o_rank;
  config["index_n_heads"] = shape.index_heads;
  config["index_topk"] = shape.index_top_k;
  config["n_routed_experts"] = shape.experts;
  config["num_experts_per_tok"] = shape.chosen;
  config["moe_intermediate_size"] = shape.width;
  config["vocab_size"] = 520;
  if (!shape.quantised) {
    config.erase("quantization_config");
    config.erase("expert_dtype");
  }
  return boost::json::serialize(config);
}

class CudaShapesTest : public ::testing::TestWithParam<Shape> {};

// `plain`, so that no FP8 rounding of inputs amplifies what sums in other orders differ by. Few
// experts: a token that goes to another one, since two are nearly equal, differs more.
TEST_P(CudaShapesTest, LayersMatchTheCpu) {
  const TempDir dir;
  const std::string model = dir / "model";
  {
    auto writer = CheckpointWriter::Create(model, ConfigOf(GetParam()), {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ThreadPool pool(4);
    ASSERT_TRUE(WriteSyntheticTensors(5, *writer, pool, nullptr).ok());
    ASSERT_TRUE(writer->Finish().ok());
  }
  EngineOptions options;
  options.model_dir = model;
  options.device = {.cuda = 0};
  options.numerics = Numerics::kPlain;
  options.memory_limit_bytes = int64_t{12} << 30;
  options.max_sequences = 2;
  options.max_context_tokens = 1024;
  ExpectLayersMatchTheCpu(options, {1, 3, 140, 512}, {0.01, 0.1, 0.7});
}

INSTANTIATE_TEST_SUITE_P(Any, CudaShapesTest, ::testing::ValuesIn(kShapes),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lodestone

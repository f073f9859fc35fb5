#include "tests/testing/synthetic_shape.h"

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "base/logging.h"
#include "base/thread_pool.h"
#include "model/checkpoint_writer.h"
#include "model/synthetic_checkpoint.h"

namespace lodestone {
namespace {

std::string ConfigOf(const SyntheticShape& shape) {
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

}  // namespace

void WriteSyntheticModel(const SyntheticShape& shape, const std::string& directory) {
  auto writer = CheckpointWriter::Create(directory, ConfigOf(shape), {});
  CHECK(writer.ok()) << writer.status().ToString();
  ThreadPool pool(4);
  absl::Status written = WriteSyntheticTensors(5, *writer, pool, nullptr);
  if (written.ok()) written = writer->Finish();
  CHECK(written.ok()) << written.ToString();
}

}  // namespace lodestone

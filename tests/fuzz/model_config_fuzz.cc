// config.json. Input: lines, each "key=JSON value" put over a valid configuration ("key=" alone
// removes it); an input that starts with "{" is taken as it is.
// Properties: an accepted configuration is consistent, its tensors can be counted and their bytes
// do not wrap, its rotary frequencies are finite, falling and at most 1.
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include <cmath>

#include "model/inventory.h"
#include "model/strict_json.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

const boost::json::object& ValidConfig() {
  static const auto* const config = new boost::json::object(
      boost::json::parse(
          *ReadTextFile(std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny/config.json"))
          .as_object());
  return *config;
}

std::string ConfigText(FuzzInput input) {
  if (input.Rest().starts_with('{')) return std::string(input.Rest());
  boost::json::object config = ValidConfig();
  while (!input.empty()) {
    FuzzInput line(reinterpret_cast<const uint8_t*>(input.Rest().data()),
                   std::min(input.Rest().find('\n'), input.Rest().size()));
    input.Until('\n');
    const std::string key(line.Until('='));
    const std::string value(line.Rest());
    boost::system::error_code error;
    boost::json::value parsed = boost::json::parse(value, error);
    if (value.empty()) {
      config.erase(key);
    } else if (!error) {
      config[key] = std::move(parsed);
    }
  }
  return boost::json::serialize(config);
}

void CheckDims(const ModelConfig& c) {
  CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.num_heads > 0 && c.head_dim > 0);
  CHECK_EQ(c.compress_ratios.size(), static_cast<size_t>(c.num_layers));
  CHECK_EQ(c.num_heads % c.output_groups, 0);
  CHECK(c.rope_dims > 0 && c.rope_dims < c.head_dim && c.rope_dims % 2 == 0);
  CHECK(c.experts_per_token > 0 && c.experts_per_token <= c.num_experts);
  CHECK(c.num_hash_layers >= 0 && c.num_hash_layers <= c.num_layers);
  CHECK(c.window > 0 && (c.window & (c.window - 1)) == 0);
  CHECK(!c.eos_ids.empty());
  for (const int32_t id : c.eos_ids) CHECK(id >= 0 && id < c.vocab_size) << id;
  CHECK(c.bos_id >= 0 && c.bos_id < c.vocab_size) << c.bos_id;
  for (const float number : {c.routed_scale, c.swiglu_limit, c.hc_eps, c.rms_eps}) {
    CHECK(std::isfinite(number) && number > 0) << number;
  }
}

void CheckFrequencies(const std::vector<float>& frequencies, const ModelConfig& c) {
  CHECK_EQ(frequencies.size(), static_cast<size_t>(c.rope_dims / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    CHECK(std::isfinite(frequencies[i]) && frequencies[i] >= 0 && frequencies[i] <= 1)
        << frequencies[i];
    if (i > 0) CHECK_LE(frequencies[i], frequencies[i - 1]);
  }
}

// Only of models with few tensors: a list of 512 x 1024 experts would take seconds.
void CheckInventory(const ModelConfig& c) {
  if (c.num_layers * c.num_experts > 256) return;
  unsigned __int128 total = 0;
  for (const TensorSpec& spec : TensorInventory(c)) {
    unsigned __int128 bytes = static_cast<unsigned>(BytesPerElement(spec.dtype));
    for (const int64_t dim : spec.shape) {
      CHECK_LT(0, dim);
      bytes *= static_cast<uint64_t>(dim);
      CHECK(bytes <= INT64_MAX) << spec.name;
    }
    total += bytes;
  }
  CHECK(total <= INT64_MAX);
}

void Run(const FuzzInput& input) {
  const std::string text = ConfigText(input);
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) {
    CHECK(config.status().code() == absl::StatusCode::kInvalidArgument) << config.status();
    CHECK(!config.status().message().empty());
    return;
  }
  CheckDims(*config);
  CheckInventory(*config);
  CheckFrequencies(WindowFrequencies(*config), *config);
  CheckFrequencies(CompressedFrequencies(*config), *config);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}

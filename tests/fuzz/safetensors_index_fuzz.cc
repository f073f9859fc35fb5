// model.safetensors.index.json. Properties: accepted shards are names of files in the checkpoint's
// own folder, whatever the tensors are called, and an index written from them reads back the same.
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "model/weight_map.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

void Run(std::string_view text) {
  const absl::StatusOr<WeightMap> weight_map = ParseWeightMap(text);
  if (!weight_map.ok()) {
    CHECK(weight_map.status().code() == absl::StatusCode::kInvalidArgument) << weight_map.status();
    return;
  }
  CHECK(!weight_map->empty());
  boost::json::object tensors;
  for (const auto& [name, shard] : *weight_map) {
    CHECK(!shard.empty() && shard != "." && shard != "..");
    CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos) << shard;
    tensors[name] = shard;
  }
  const absl::StatusOr<WeightMap> again =
      ParseWeightMap(boost::json::serialize(boost::json::object{{"weight_map", tensors}}));
  CHECK(again.ok()) << again.status();
  CHECK(*again == *weight_map);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}

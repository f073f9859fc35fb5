#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lodestone {

// Tensor name to shard name.
using WeightMap = std::map<std::string, std::string, std::less<>>;

// Reads the text of a model.safetensors.index.json. INVALID_ARGUMENT, naming the tensor, for what
// is not an index, an empty one, and a shard that is not a plain file name: shards lie in the
// checkpoint's own folder. Pure.
absl::StatusOr<WeightMap> ParseWeightMap(std::string_view index_text);

}  // namespace lodestone

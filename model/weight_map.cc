#include "model/weight_map.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "model/strict_json.h"

namespace lodestone {
namespace {

namespace json = boost::json;

absl::Status TensorError(std::string_view name, const std::string& what) {
  return absl::InvalidArgumentError("tensor '" + std::string(name) + "' " + what);
}

// A shard must lie in the checkpoint's own folder.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

absl::StatusOr<WeightMap> ParseWeightMap(std::string_view index_text) {
  ASSIGN_OR_RETURN(const json::value root, ParseStrictJson(index_text));
  const json::value* map = root.is_object() ? root.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    return absl::InvalidArgumentError("has no weight_map");
  }
  WeightMap weight_map;
  for (const json::key_value_pair& item : map->get_object()) {
    const std::string name(item.key());
    if (!item.value().is_string()) return TensorError(name, "is not mapped to a file name");
    const std::string shard(item.value().get_string());
    if (!IsPlainFileName(shard)) {
      return TensorError(name, "is mapped to '" + shard + "', which is not a file name");
    }
    weight_map.emplace(name, shard);
  }
  if (weight_map.empty()) return absl::InvalidArgumentError("has an empty weight_map");
  return weight_map;
}

}  // namespace lodestone

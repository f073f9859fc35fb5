#include "kvcache/cache_shape.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace lodestone {
namespace {

absl::Status Invalid(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("cache shape: ", what));
}

}  // namespace

int64_t CacheShape::NumLayers(int64_t ratio) const {
  return std::count(compress_ratios.begin(), compress_ratios.end(), ratio);
}

absl::Status CacheShape::Validate() const {
  if (compress_ratios.empty()) return Invalid("no layers");
  for (int layer = 0; layer < num_layers(); ++layer) {
    const int ratio = compress_ratios[layer];
    if (ratio != 0 && ratio != kIndexedRatio && ratio != kDenseRatio) {
      return Invalid(
          absl::StrCat("layer ", layer, " has compress ratio ", ratio, ", known are 0, 4 and 128"));
    }
  }
  if (head_dim < 1)
    return Invalid(absl::StrCat("head_dim is ", head_dim, ", at least 1 is needed"));
  if (rope_dim < 0 || rope_dim > head_dim || rope_dim % 2 != 0) {
    return Invalid(absl::StrCat("rope_dim is ", rope_dim, ", an even number up to head_dim ",
                                head_dim, " is needed"));
  }
  if (kv_format == KvFormat::kFp8 && (head_dim - rope_dim) % kFp8KvGroup != 0) {
    return Invalid(absl::StrCat("head_dim - rope_dim is ", head_dim - rope_dim,
                                ", kv format fp8 needs a multiple of ", kFp8KvGroup));
  }
  if (window < 1) return Invalid(absl::StrCat("window is ", window, ", at least 1 is needed"));
  if (NumLayers(kIndexedRatio) > 0 && (index_head_dim < 1 || index_head_dim % kFp4Group != 0)) {
    return Invalid(absl::StrCat("index_head_dim is ", index_head_dim, ", a multiple of ", kFp4Group,
                                " is needed"));
  }
  return absl::OkStatus();
}

}  // namespace lodestone

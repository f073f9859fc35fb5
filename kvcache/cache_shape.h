#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runtime/cache_format.h"

namespace lodestone {

inline constexpr int64_t kIndexedRatio = 4;  // tokens per entry in indexed layers
inline constexpr int64_t kDenseRatio = 128;  // tokens per entry in dense layers

// Everything the sizes and places of cache rows depend on. The engine fills it from the model's
// configuration and the chosen formats. Plain data.
struct CacheShape {
  std::vector<int> compress_ratios;  // one per layer: 0 window, 4 indexed, 128 dense
  int64_t head_dim = 0;              // d: dims of a latent
  int64_t rope_dim = 0;              // r_d: how many of them, the last ones, are rotary
  int64_t index_head_dim = 0;        // d_i: dims of an index key
  int64_t window = 0;                // W: rows of a ring window
  KvFormat kv_format = KvFormat::kBf16;
  IndexKeyFormat index_key_format = IndexKeyFormat::kBf16;

  int num_layers() const { return static_cast<int>(compress_ratios.size()); }
  // Layers whose ratio is `ratio`.
  int64_t NumLayers(int64_t ratio) const;
  // INVALID_ARGUMENT naming the field and its value if a cache cannot have this shape.
  absl::Status Validate() const;

  friend bool operator==(const CacheShape&, const CacheShape&) = default;
};

// Pages that hold `num_tokens` tokens. REQUIRES: num_tokens >= 0.
constexpr int64_t PagesFor(int64_t num_tokens) {
  return num_tokens / kPageTokens + (num_tokens % kPageTokens != 0);
}

}  // namespace lodestone

#pragma once

#include <vector>

#include "kvcache/cache_shape.h"

namespace lodestone {

// Layers as the large models have them: `first` two layers, then indexed and dense in turn, closed
// by an indexed layer.
inline CacheShape LargeShape(int first, int pairs) {
  CacheShape shape;
  shape.compress_ratios = {first, first};
  for (int i = 0; i < pairs; ++i) {
    shape.compress_ratios.push_back(4);
    shape.compress_ratios.push_back(128);
  }
  shape.compress_ratios.push_back(4);
  shape.head_dim = 512;
  shape.rope_dim = 64;
  shape.index_head_dim = 128;
  shape.window = 128;
  return shape;
}
inline CacheShape FlashShape() { return LargeShape(0, 20); }
inline CacheShape ProShape() { return LargeShape(128, 29); }

// All layer kinds, rows small enough to compare every byte.
inline CacheShape SmallShape() {
  CacheShape shape;
  shape.compress_ratios = {0, 4, 128, 4};
  shape.head_dim = 128;
  shape.rope_dim = 64;
  shape.index_head_dim = 32;
  shape.window = 128;
  return shape;
}

inline std::vector<CacheShape> SmallShapesOfEveryFormat() {
  std::vector<CacheShape> shapes;
  for (KvFormat kv : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kF32}) {
    for (IndexKeyFormat key : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4,
                               IndexKeyFormat::kF32}) {
      CacheShape shape = SmallShape();
      shape.kv_format = kv;
      shape.index_key_format = key;
      shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace lodestone

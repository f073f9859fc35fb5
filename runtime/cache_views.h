#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/tensor.h"

// Views of cache memory that the cache, the kernels and the model share. None of them owns memory.
namespace lodestone {

// The cache kinds whose rows travel. Names are the memory pools of the metrics.
enum class CacheKind : uint8_t {
  kLatentsIndexed, kLatentsDense, kIndexKeys, kExactIndexKeys, kRingWindows, kCompressorStates,
};
inline constexpr int kNumCacheKinds = 6;
constexpr std::string_view Name(CacheKind kind) {
  constexpr std::string_view kNames[kNumCacheKinds] = {
      "latents_indexed", "latents_dense", "index_keys",
      "exact_index_keys", "ring_windows", "compressor_states"};
  return kNames[static_cast<int>(kind)];
}

// `num_rows` rows of one kind and layer whose parts are regularly spaced in memory. A row is the
// concatenation of its parts; one digest covers it.
struct RowRun {
  CacheKind kind = CacheKind::kLatentsIndexed;
  int32_t layer = 0;
  int64_t first_entry = 0;  // entry number, or position, or state row, of the first row
  int64_t num_rows = 0;
  static constexpr int kMaxParts = 2;
  int num_parts = 0;
  std::byte* part[kMaxParts] = {};        // address of the first row's part
  int64_t part_bytes[kMaxParts] = {};     // bytes of the part in every row
  int64_t part_stride[kMaxParts] = {};    // bytes from one row's part to the next row's
  int64_t row_bytes() const { return part_bytes[0] + (num_parts > 1 ? part_bytes[1] : 0); }
  int64_t bytes() const { return row_bytes() * num_rows; }
  // Rows [first, first + count) of this run. REQUIRES: they lie inside it.
  RowRun Rows(int64_t first, int64_t count) const {
    RowRun run = *this;
    run.first_entry += first;
    run.num_rows = count;
    for (int i = 0; i < num_parts; ++i) run.part[i] += first * part_stride[i];
    return run;
  }
};

// Rows of one cache kind and layer: planar, payloads then scales (runtime/cache_format.h).
// Row r of block b is payload[b, r, :] and scale[b, r, :]; a block is a page or a sequence slot.
struct RowStore {
  TensorView payload;  // u8 [blocks, rows, payload bytes]
  TensorView scale;    // u8 [blocks, rows, scale bytes]; empty() if the format has none
};

// State of one compressor for every sequence slot, fp32 (docs/model.md 8.5).
struct CompressorStateView {
  TensorView kv;     // f32 [S, rows, w]  ratio 4: 8 rows, w = 2c; ratio 128: 128 rows, w = c
  TensorView score;  // f32, same shape; includes ape; -inf where nothing was written
};

// The cache of one layer, as views into memory that the engine's cache pool owns.
struct LayerCacheView {
  RowStore ring;                    // [S, W] latents
  RowStore entries;                 // [P, kPageTokens / ratio] latents; unset in window layers
  CompressorStateView state;        // of the latent compressor; unset in window layers
  RowStore index_keys;              // [P, kPageTokens / 4]; ratio-4 layers only
  CompressorStateView index_state;  // of the index-key compressor; ratio-4 layers only
};

}  // namespace lodestone

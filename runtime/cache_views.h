#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ids.h"
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

// `num_rows` rows of one kind and layer: regularly spaced in memory, or in pages, regularly spaced
// in each. A row is the concatenation of its parts; one digest covers it.
struct RowRun {
  CacheKind kind = CacheKind::kLatentsIndexed;
  int32_t layer = 0;
  int64_t first_entry = 0;  // entry number, or position, or state row, of the first row
  int64_t num_rows = 0;
  static constexpr int kMaxParts = 2;
  int num_parts = 0;
  std::byte* part[kMaxParts] = {};      // of the first row; in pages, of row 0 of page 0
  int64_t part_bytes[kMaxParts] = {};   // bytes of the part in every row
  int64_t part_stride[kMaxParts] = {};  // bytes from one row's part to the next row's
  // The page of the first row, then those that follow, `rows_per_page` rows in each; null: no
  // pages. They are the sequence's (SequenceCache::AppendRuns).
  const PageId* pages = nullptr;
  int64_t rows_per_page = 0;
  int64_t first_in_page = 0;             // the first row in pages[0]
  int64_t page_stride[kMaxParts] = {};  // bytes from one page's part to the next page's

  int64_t row_bytes() const { return part_bytes[0] + (num_parts > 1 ? part_bytes[1] : 0); }
  int64_t bytes() const { return row_bytes() * num_rows; }
  int64_t num_pages() const {
    return pages == nullptr ? 0 : (first_in_page + num_rows + rows_per_page - 1) / rows_per_page;
  }
  // Where part `i` of a row lies.
  std::byte* At(int i, int64_t row) const {
    if (pages == nullptr) return part[i] + row * part_stride[i];
    const int64_t place = first_in_page + row;
    return part[i] + pages[place / rows_per_page].value() * page_stride[i] +
           place % rows_per_page * part_stride[i];
  }
  // Rows [first, first + count) of this run. REQUIRES: they lie inside it.
  RowRun Rows(int64_t first, int64_t count) const {
    RowRun run = *this;
    run.first_entry += first;
    run.num_rows = count;
    if (pages != nullptr) {
      run.pages += (first_in_page + first) / rows_per_page;
      run.first_in_page = (first_in_page + first) % rows_per_page;
    } else {
      for (int i = 0; i < num_parts; ++i) run.part[i] += first * part_stride[i];
    }
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

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/cache_shape.h"
#include "kvcache/memory_pool.h"
#include "runtime/cache_views.h"

// Where every byte of the cache is (docs/kv_layout.md has the picture). This is the only place that
// knows byte offsets: everybody else reads rows through the views and runs made here.
//
//   page pools: latents_indexed, index_keys, latents_dense   [layer of the kind][page]{planar
//   block} slot pools: ring_windows                                 [layer][slot]{planar block of W
//   rows}
//               compressor_states                            [layer][slot]{kv, score per
//               compressor}
//
// A planar block is all payloads, then all scales; both parts begin at a multiple of 16 bytes.
namespace lodestone {

inline constexpr int64_t kBlockAlignment = 16;

// Rows of one page or ring of one layer.
struct PlanarBlock {
  int64_t num_rows = 0;
  RowBytes row;
  int64_t scale_offset = 0;  // bytes from the block's start; payloads begin at 0
  int64_t bytes = 0;         // of the whole block, padding included
};
PlanarBlock MakePlanarBlock(RowBytes row, int64_t num_rows);

// State of one compressor of one sequence: kv rows, then score rows, fp32.
struct StateBlock {
  int64_t num_rows = 0;
  int64_t width = 0;         // floats of a row
  int64_t score_offset = 0;  // bytes; kv begins at 0
  int64_t bytes = 0;
};

// State rows of the index-key compressor have entry numbers from here on, so that every row of
// kCompressorStates of a layer has its own.
inline constexpr int64_t kIndexStateEntry = 1024;

// Sizes and places for one shape. Immutable, so any thread may use it.
class CacheLayout {
 public:
  // REQUIRES: shape.Validate().ok().
  explicit CacheLayout(CacheShape shape);

  const CacheShape& shape() const { return shape_; }

  // Blocks of one layer. REQUIRES: the kind is a page pool (PageBlock).
  const PlanarBlock& PageBlock(CacheKind kind) const;
  const PlanarBlock& RingBlock() const { return ring_; }
  // Of the latent compressor of a layer with this ratio, and of the index-key compressor.
  const StateBlock& LatentState(int64_t ratio) const;
  const StateBlock& IndexState() const { return index_state_; }

  // Bytes of one page, and of one sequence slot, over all layers, by pool.
  PoolBytes BytesPerPage() const;
  PoolBytes BytesPerSlot() const;

  // The rows of one kind and layer in a pool of that kind that starts at `pool` and has
  // `num_blocks` pages or slots. REQUIRES: the layer has rows of this kind; kind is not
  // kCompressorStates.
  RowStore Rows(CacheKind kind, int layer, std::byte* pool, int64_t num_blocks) const;
  // The states of the latent and of the index-key compressor of a layer.
  CompressorStateView LatentStates(int layer, std::byte* pool, int64_t num_slots) const;
  CompressorStateView IndexStates(int layer, std::byte* pool, int64_t num_slots) const;

 private:
  int64_t LayersBefore(int layer, int64_t ratio) const;
  int64_t StateBytesPerSlot(int layer) const;

  const CacheShape shape_;
  PlanarBlock latents_indexed_;
  PlanarBlock latents_dense_;
  PlanarBlock index_keys_;
  PlanarBlock ring_;
  StateBlock indexed_state_;
  StateBlock dense_state_;
  StateBlock index_state_;
};

// Rows [first_row, first_row + num_rows) of one block; kind, layer and entry are the caller's.
// REQUIRES: they lie inside the block.
RowRun RunOf(const RowStore& store, int64_t block, int64_t first_row, int64_t num_rows);
// `num_rows` rows of the pages that `pages` begins with, from row `first_row` of the first on.
// REQUIRES: they lie inside these pages.
RowRun RunOf(const RowStore& store, std::span<const PageId> pages, int64_t first_row,
             int64_t num_rows);
// State rows of one slot; a row is `width` floats of kv, then `width` floats of score.
RowRun RunOf(const CompressorStateView& state, int64_t slot, int64_t first_row, int64_t num_rows,
             int64_t width);

// What must agree between two workers, beside the shape, for the rows of one to mean the same to
// the other.
struct LayoutIdentity {
  std::string model_id;               // hex SHA-256 of the checkpoint's description
  std::string tokenizer_fingerprint;  // hex
  Numerics numerics = Numerics::kPlain;
  double rope_theta = 0;           // window layers
  double compress_rope_theta = 0;  // layers with entries
  // Scaling of the second table, e.g. "yarn factor=16 original=65536 fast=32 slow=1"; "" for none.
  std::string rope_scaling;
};

struct LayoutField {
  std::string name;
  std::string value;
  friend bool operator==(const LayoutField&, const LayoutField&) = default;
};

// The canonical description of the rows: ordered fields that two workers exchange at link-up.
using LayoutDescriptor = std::vector<LayoutField>;
inline constexpr int kLayoutWireVersion = 1;

LayoutDescriptor DescribeLayout(const CacheShape& shape, const LayoutIdentity& identity);
// XXH64 of the canonical text ("name=value\n" in order). Workers with different ones never pair.
uint64_t LayoutFingerprint(const LayoutDescriptor& layout);
// One text per field that differs: "index_k: bf16 here, fp8 there"; "none" for an absent field.
std::vector<std::string> DifferingFields(const LayoutDescriptor& here,
                                         const LayoutDescriptor& there);

}  // namespace lodestone

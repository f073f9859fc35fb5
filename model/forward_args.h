#pragma once

#include <functional>
#include <span>

#include "kernels/op_params.h"

namespace lodestone {

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

// What a caller may watch during a pass; unset functions cost nothing. Called on the loop thread,
// in layer order, after the stream has drained; the views are valid during the call only.
struct ForwardProbe {
  std::function<void(const TensorView& streams)> on_embedding;             // act [T, M, D]
  std::function<void(int layer, const TensorView& streams)> on_layer;      // after the layer
  // Ratio-4 layers. scores: f32 [T, >= visible], filled only if want_scores.
  std::function<void(int layer, const IndexTopKParams& selection)> on_selection;
  bool want_scores = false;
};

// One forward pass over the tokens of a batch, all views on the backend's device.
struct ForwardArgs {
  TensorView ids;         // i32 [T]
  BatchIndex batch;       // whose tokens, where
  TensorView num_visible_indexed;  // i32 [T]  (position + 1) / 4
  int64_t max_visible_indexed = 0;  // largest of them
  int64_t max_position = 0;         // largest position
  std::span<const LayerCacheView> caches;  // one per layer
  TensorView logit_rows;  // i32 [R]  rows of the batch whose logits are wanted; R may be 0
  TensorView logits;      // f32 [R, V]  out
  const ForwardProbe* probe = nullptr;  // tests and shadow recall
};

}  // namespace lodestone

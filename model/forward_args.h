#pragma once

#include <functional>
#include <span>

#include "kernels/op_params.h"

namespace lodestone {

// What a caller may watch during a pass; unset functions cost nothing. Called on the loop thread,
// in layer order, after the stream has drained; the views are valid during the call only.
struct ForwardProbe {
  std::function<void(const TensorView& streams)> on_embedding;         // act [T, M, D]
  std::function<void(int layer, const TensorView& streams)> on_layer;  // after the layer
  // Ratio-4 layers. scores: f32 [T, >= visible], filled only if want_scores.
  std::function<void(int layer, const IndexTopKParams& selection)> on_selection;
  bool want_scores = false;
};

// One forward pass over the tokens of a batch, all views on the backend's device.
struct ForwardArgs {
  TensorView ids;                          // i32 [T]
  BatchIndex batch;                        // whose tokens, where
  TensorView num_visible_indexed;          // i32 [T]  (position + 1) / 4
  int64_t max_visible_indexed = 0;         // largest of them
  int64_t max_position = 0;                // largest position
  std::span<const LayerCacheView> caches;  // one per layer
  TensorView logit_rows;  // i32 [R]  rows of the batch whose logits are wanted; R may be 0
  TensorView logits;      // f32 [R, V]  out
  const ForwardProbe* probe = nullptr;  // tests and shadow recall
  std::function<void()> layer_done = {};  // after each layer: it has run, or a device has it queued
};

}  // namespace lodestone

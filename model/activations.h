#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"
#include "model/format_choice.h"
#include "model/model_config.h"
#include "runtime/tensor.h"

namespace lodestone {

// Sizes of one forward pass.
struct PassShape {
  int64_t num_tokens = 0;           // T
  int64_t num_logit_rows = 0;       // R
  int64_t max_visible_indexed = 0;  // entries of ratio 4 that a token may see, at most
  int64_t max_visible_dense = 0;    // the same for ratio 128
  bool index_scores = false;        // the caller wants the indexer's scores
};

// Every intermediate of a pass, as views into one workspace that all layers reuse. Attention and
// feed-forward share the space behind the streams, since only `x` goes in and `y` comes out.
struct Activations {
  TensorView streams;  // act [T, M, D]  the residual
  TensorView x;        // act [T, D]     input of a sub-layer
  TensorView y;        // act [T, D]     its output
  TensorView post;     // f32 [T, M]
  TensorView comb;     // f32 [T, M, M]
  TensorView hc_scratch;

  // Attention.
  TensorView linear_scratch;    // for the inputs of the widest product
  TensorView query_low_rank;    // act [T, R_q]
  TensorView query;             // act [T, H, d]
  TensorView window_kv;         // act [T, d]
  TensorView latents;           // act [T, d]
  TensorView pool_kv;           // f32 [T, 2 d], as wide as the compressor of latents can be
  TensorView pool_score;        // the same
  TensorView index_pool_kv;     // f32 [T, 2 d_i]
  TensorView index_pool_score;  // the same
  TensorView index_query;       // act [T, H_i, d_i]
  TensorView index_raw_weight;  // act [T, H_i]
  TensorView index_weight;      // f32 [T, H_i]
  TensorView index_scratch;
  TensorView top_entries;   // i32 [T, K_i]
  TensorView index_scores;  // f32 [T, max visible]; empty() unless wanted
  TensorView attention_scratch;
  TensorView attention_out;    // act [T, H, d]
  TensorView output_low_rank;  // act [T, G * R_o]

  // Feed-forward.
  TensorView experts;         // i32 [T, experts per token]
  TensorView expert_weights;  // f32 [T, experts per token]
  TensorView moe_scratch;

  // Head.
  TensorView head_x;  // act [R, D]

  int64_t num_bytes = 0;  // of the workspace, up to the end of the last view
};

// Lays the views of one pass over `workspace`. With a null workspace only `num_bytes` is of use; it
// never shrinks when a size of `shape` grows.
Activations LayOutActivations(const ModelConfig& config, const Ops& ops,
                              const FormatChoice& formats, const PassShape& shape,
                              std::byte* workspace);

}  // namespace lodestone

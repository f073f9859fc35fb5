#pragma once

#include "kernels/ops.h"
#include "model/activations.h"
#include "model/format_choice.h"
#include "model/forward_args.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "runtime/stream.h"

namespace lodestone {

// What every part of one pass needs; lives on the stack of Transformer::Forward.
struct ForwardPass {
  const ModelConfig& config;
  const Weights& weights;
  const Ops& ops;
  const FormatChoice& formats;
  const ForwardArgs& args;
  const Activations& act;
  Stream& stream;

  int64_t num_tokens() const { return act.x.shape[0]; }
  // Rotary table of a layer: every rotation in it uses the same one (docs/model.md 7.2).
  const TensorView& freqs(int64_t layer) const {
    return config.ratio(layer) == 0 ? weights.window_freqs : weights.compressed_freqs;
  }
  // out = x weight^T. `out` may have more axes than the product; they are flattened.
  void Linear(const TensorView& x, const PackedWeight& weight, const TensorView& out) const {
    ops.Linear({.x = TensorView(x.data, x.dtype, {num_tokens(), weight.groups * weight.k}),
                .weight = weight,
                .round_fp8 = RoundsProductInputs(formats.numerics),
                .scratch = act.linear_scratch,
                .out = TensorView(out.data, out.dtype, {num_tokens(), weight.groups * weight.n})},
               stream);
  }
};

}  // namespace lodestone

#include "model/feed_forward.h"

namespace lodestone {

void RunFeedForward(const ForwardPass& pass, int64_t layer) {
  const FeedForwardWeights& weights = pass.weights.layers[static_cast<size_t>(layer)].feed_forward;
  pass.ops.MoeRoute({.x = pass.act.x,
                     .gate = weights.gate,
                     .bias = weights.bias,
                     .tid2eid = weights.tid2eid,
                     .ids = pass.args.ids,
                     .scale = pass.config.routed_scale,
                     .experts = pass.act.experts,
                     .weights = pass.act.expert_weights},
                    pass.stream);
  pass.ops.MoeExperts({.x = pass.act.x,
                       .experts = pass.act.experts,
                       .weights = pass.act.expert_weights,
                       .routed = weights.routed,
                       .shared = &weights.shared,
                       .limit = pass.config.swiglu_limit,
                       .round_fp8 = RoundsProductInputs(pass.formats.numerics),
                       .scratch = pass.act.moe_scratch,
                       .out = pass.act.y},
                      pass.stream);
}

}  // namespace lodestone

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "model/format_choice.h"
#include "model/forward_args.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "runtime/stream.h"

namespace lodestone {

// Upper bounds of the passes that one workspace serves.
struct ForwardLimits {
  int64_t max_tokens = 0;      // T of one batch
  int64_t max_logit_rows = 0;  // R
  int64_t max_context = 0;     // largest position + 1
  bool index_scores = false;   // room for ForwardProbe::want_scores
};

// The forward pass (docs/model.md 5 to 10), written once over Ops: tokens to logits. Holds no state
// between passes: the cache belongs to the caller, activations live in the caller's workspace.
// One Transformer may serve several streams at once, each with its own workspace.
class Transformer {
 public:
  // Nothing is owned; config, weights and ops must outlive this. The weights are packed for `ops`.
  Transformer(const ModelConfig& config, const Weights& weights, const Ops& ops,
              const FormatChoice& formats);

  // Exact size of the workspace that every pass within `limits` fits into.
  static int64_t WorkspaceBytes(const ModelConfig& config, const Ops& ops,
                                const FormatChoice& formats, const ForwardLimits& limits);

  // Queues one pass: updates the caches of all layers with the batch's tokens and writes
  // args.logits. Allocates nothing. Logits and caches of a sequence do not depend on how its tokens
  // are cut into passes, nor on what else is in the batch. Failures surface at
  // stream.Synchronize(). REQUIRES: workspace is 64-byte aligned and holds WorkspaceBytes of limits
  // that cover the pass; every id is in [0, V).
  void Forward(const ForwardArgs& args, std::span<std::byte> workspace, Stream& stream) const;

  const ModelConfig& config() const { return config_; }
  const FormatChoice& formats() const { return formats_; }

 private:
  const ModelConfig& config_;
  const Weights& weights_;
  const Ops& ops_;
  const FormatChoice formats_;
};

}  // namespace lodestone

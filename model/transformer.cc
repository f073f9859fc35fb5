#include "model/transformer.h"

#include <functional>
#include <type_traits>

#include "base/logging.h"
#include "model/activations.h"
#include "model/attention.h"
#include "model/feed_forward.h"
#include "model/forward_pass.h"

namespace lodestone {
namespace {

using SubLayer = void (*)(const ForwardPass& pass, int64_t layer);

// Ratios of the two kinds of compressed layers.
constexpr int64_t kIndexedRatio = 4;
constexpr int64_t kDenseRatio = 128;

PassShape ShapeOf(const ForwardArgs& args) {
  return {.num_tokens = args.ids.shape[0],
          .num_logit_rows = args.logit_rows.shape[0],
          .max_visible_indexed = args.max_visible_indexed,
          .max_visible_dense = (args.max_position + 1) / kDenseRatio,
          .index_scores = args.probe != nullptr && args.probe->want_scores};
}

HcPreParams PreParams(const ForwardPass& pass, const HyperConnectionWeights& weights,
                      const TensorView& norm) {
  return {.streams = pass.act.streams,
          .fn = weights.fn,
          .base = weights.base,
          .scale = weights.scale,
          .norm_weight = norm,
          .rms_eps = pass.config.rms_eps,
          .hc_eps = pass.config.hc_eps,
          .sinkhorn_iters = pass.config.sinkhorn_iters,
          .scratch = pass.act.hc_scratch,
          .x = pass.act.x,
          .post = pass.act.post,
          .comb = pass.act.comb};
}

HcPostParams PostParams(const ForwardPass& pass) {
  return {.x = pass.act.y,
          .post = pass.act.post,
          .comb = pass.act.comb,
          .streams = pass.act.streams};
}

// A sub-layer after its hyper-connection, which also ends the one before if that is `open`: act.y
// has yet to be mixed into the streams, as this one's has in the end.
void RunSubLayer(const ForwardPass& pass, int64_t layer, bool open,
                 const HyperConnectionWeights& weights, const TensorView& norm,
                 SubLayer sub_layer) {
  const HcPreParams pre = PreParams(pass, weights, norm);
  if (open) {
    pass.ops.HcBoundary({.post = PostParams(pass), .pre = pre}, pass.stream);
  } else {
    pass.ops.HcPre(pre, pass.stream);
  }
  sub_layer(pass, layer);
}

void RunHead(const ForwardPass& pass) {
  if (pass.args.logit_rows.shape[0] == 0) return;
  const HyperConnectionWeights& collapse = pass.weights.head_collapse;
  pass.ops.HcHead({.streams = pass.act.streams,
                   .rows = pass.args.logit_rows,
                   .fn = collapse.fn,
                   .base = collapse.base,
                   .scale = collapse.scale,
                   .norm_weight = pass.weights.final_norm,
                   .rms_eps = pass.config.rms_eps,
                   .hc_eps = pass.config.hc_eps,
                   .x = pass.act.head_x},
                  pass.stream);
  pass.ops.Linear({.x = pass.act.head_x, .weight = pass.weights.head, .out = pass.args.logits},
                  pass.stream);
}

// Calls `watch`, if set, once everything queued has run.
template <typename... Args>
void Watch(const ForwardPass& pass, const std::function<void(Args...)>& watch,
           std::type_identity_t<Args>... args) {
  if (watch && pass.stream.Synchronize().ok()) watch(args...);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, const Ops& ops,
                         const FormatChoice& formats)
    : config_(config), weights_(weights), ops_(ops), formats_(formats) {}

int64_t Transformer::WorkspaceBytes(const ModelConfig& config, const Ops& ops,
                                    const FormatChoice& formats, const ForwardLimits& limits) {
  const PassShape shape{.num_tokens = limits.max_tokens,
                        .num_logit_rows = limits.max_logit_rows,
                        .max_visible_indexed = limits.max_context / kIndexedRatio,
                        .max_visible_dense = limits.max_context / kDenseRatio,
                        .index_scores = limits.index_scores};
  return LayOutActivations(config, ops, formats, shape, nullptr).num_bytes;
}

void Transformer::Forward(const ForwardArgs& args, std::span<std::byte> workspace,
                          Stream& stream) const {
  CHECK_EQ(static_cast<int64_t>(args.caches.size()), config_.num_layers);
  const Activations act =
      LayOutActivations(config_, ops_, formats_, ShapeOf(args), workspace.data());
  CHECK_LE(act.num_bytes, static_cast<int64_t>(workspace.size()))
      << "the pass is beyond the limits";
  const ForwardPass pass{config_, weights_, ops_, formats_, args, act, stream};
  static const ForwardProbe kNoProbe;
  const ForwardProbe& probe = args.probe != nullptr ? *args.probe : kNoProbe;

  ops_.EmbedTokens({.ids = args.ids, .table = weights_.embedding, .streams = act.streams}, stream);
  Watch(pass, probe.on_embedding, act.streams);
  bool open = false;
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    RunSubLayer(pass, layer, open, weights.hc_attn, weights.attention.norm, RunAttention);
    RunSubLayer(pass, layer, true, weights.hc_ffn, weights.feed_forward.norm, RunFeedForward);
    open = !probe.on_layer && layer + 1 < config_.num_layers;
    if (!open) ops_.HcPost(PostParams(pass), stream);
    Watch(pass, probe.on_layer, static_cast<int>(layer), act.streams);
    if (args.layer_done) args.layer_done();
  }
  RunHead(pass);
}

}  // namespace lodestone

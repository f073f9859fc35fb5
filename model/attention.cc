#include "model/attention.h"

namespace lodestone {
namespace {

// One layer's parts, so that the steps below read like docs/model.md 8.9.
struct AttentionLayer {
  const ForwardPass& pass;
  const int64_t layer;
  const AttentionWeights& weights;
  const LayerCacheView& cache;

  const Activations& act() const { return pass.act; }
  int64_t ratio() const { return pass.config.ratio(layer); }
};

void ProjectQuery(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  pass.Linear(a.act().x, a.weights.wq_a, a.act().query_low_rank);
  pass.ops.RmsNorm({.x = a.act().query_low_rank,
                    .weight = a.weights.q_norm,
                    .eps = pass.config.rms_eps,
                    .out = a.act().query_low_rank},
                   pass.stream);
  pass.Linear(a.act().query_low_rank, a.weights.wq_b, a.act().query);
  pass.ops.QueryNormRope({.q = a.act().query,
                          .positions = pass.args.batch.positions,
                          .freqs = pass.freqs(a.layer),
                          .eps = pass.config.rms_eps},
                         pass.stream);
}

void ComputeWindowLatents(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  pass.Linear(a.act().x, a.weights.wkv, a.act().window_kv);
  pass.ops.WindowLatent({.kv = a.act().window_kv,
                         .weight = a.weights.kv_norm,
                         .positions = pass.args.batch.positions,
                         .freqs = pass.freqs(a.layer),
                         .eps = pass.config.rms_eps,
                         .round_fp8 = RoundsLatentsToFp8(pass.formats.numerics, pass.formats.kv),
                         .latents = a.act().latents},
                        pass.stream);
}

void ComputeIndexQuery(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  pass.Linear(a.act().query_low_rank, a.weights.indexer.wq_b, a.act().index_query);
  pass.Linear(a.act().x, a.weights.indexer.weights_proj, a.act().index_raw_weight);
  pass.ops.IndexQuery({.q = a.act().index_query,
                       .raw_weight = a.act().index_raw_weight,
                       .positions = pass.args.batch.positions,
                       .freqs = pass.freqs(a.layer),
                       .rounding = IndexRoundingOf(pass.formats.numerics, pass.formats.index_key),
                       .weight = a.act().index_weight},
                      pass.stream);
}

// Advances one compressor by the batch: `row` says what becomes of a completed entry.
void Compress(const AttentionLayer& a, const CompressorWeights& weights, CompressedRow row,
              const CompressorStateView& state, const RowStore& entries) {
  const ForwardPass& pass = a.pass;
  const int64_t width = weights.wkv.n;
  const TensorView kv(a.act().pool_kv.data, DType::kF32, {pass.num_tokens(), width});
  const TensorView score(a.act().pool_score.data, DType::kF32, {pass.num_tokens(), width});
  pass.Linear(a.act().x, weights.wkv, kv);
  pass.Linear(a.act().x, weights.wgate, score);
  pass.ops.CompressKv(
      {.kv = kv,
       .score = score,
       .ape = weights.ape,
       .norm_weight = weights.norm,
       .freqs = pass.freqs(a.layer),
       .ratio = a.ratio(),
       .eps = pass.config.rms_eps,
       .batch = pass.args.batch,
       .act = pass.formats.activation(),
       .row = row,
       .round_fp8 = RoundsLatentsToFp8(pass.formats.numerics, pass.formats.kv),
       .kv_format = pass.formats.kv,
       .index_rounding = IndexRoundingOf(pass.formats.numerics, pass.formats.index_key),
       .index_format = pass.formats.index_key,
       .state_kv = state.kv,
       .state_score = state.score,
       .entries = entries},
      pass.stream);
}

void SelectEntries(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  const ForwardProbe* probe = pass.args.probe;
  const IndexTopKParams params{.q = a.act().index_query,
                               .weight = a.act().index_weight,
                               .keys = a.cache.index_keys,
                               .format = pass.formats.index_key,
                               .batch = pass.args.batch,
                               .num_visible = pass.args.num_visible_indexed,
                               .scratch = a.act().index_scratch,
                               .top_entries = a.act().top_entries,
                               .scores = a.act().index_scores};
  pass.ops.IndexTopK(params, pass.stream);
  if (probe == nullptr || !probe->on_selection) return;
  if (pass.stream.Synchronize().ok()) probe->on_selection(static_cast<int>(a.layer), params);
}

void Attend(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  const bool selects = a.ratio() == 4;
  pass.ops.SparseAttention({.q = a.act().query,
                            .latents = a.act().latents,
                            .batch = pass.args.batch,
                            .window = pass.config.window,
                            .ring = a.cache.ring,
                            .format = pass.formats.kv,
                            .ratio = a.ratio(),
                            .entries = a.cache.entries,
                            .top_entries = selects ? a.act().top_entries : TensorView(),
                            .sink = a.weights.sink,
                            .freqs = pass.freqs(a.layer),
                            .scratch = a.act().attention_scratch,
                            .out = a.act().attention_out},
                           pass.stream);
}

void StoreWindow(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  pass.ops.StoreWindow({.latents = a.act().latents,
                        .batch = pass.args.batch,
                        .format = pass.formats.kv,
                        .rope_dims = pass.config.rope_dims,
                        .ring = a.cache.ring},
                       pass.stream);
}

}  // namespace

void RunAttention(const ForwardPass& pass, int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  const AttentionLayer a{pass, layer, pass.weights.layers[index].attention,
                         pass.args.caches[index]};
  ProjectQuery(a);
  ComputeWindowLatents(a);
  if (pass.config.is_indexed(layer)) {
    ComputeIndexQuery(a);
    // Before scoring: an entry that closes with a token can be selected by that token.
    Compress(a, a.weights.indexer.compressor, CompressedRow::kIndexKey, a.cache.index_state,
             a.cache.index_keys);
    SelectEntries(a);
  }
  if (pass.config.ratio(layer) != 0) {
    Compress(a, a.weights.compressor, CompressedRow::kLatent, a.cache.state, a.cache.entries);
  }
  Attend(a);
  StoreWindow(a);  // after Attend, which reads the rows that this overwrites
  pass.Linear(pass.act.attention_out, a.weights.wo_a, pass.act.output_low_rank);
  pass.Linear(pass.act.output_low_rank, a.weights.wo_b, pass.act.y);
}

}  // namespace lodestone

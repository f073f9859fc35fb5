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
  bool indexed() const { return pass.config.is_indexed(layer); }
  bool one_token_each() const { return pass.args.batch.num_seqs() == pass.num_tokens(); }

  // Products of the compressors: f32 [T, their width].
  TensorView pool_kv() const { return Pool(act().pool_kv, weights.compressor); }
  TensorView pool_score() const { return Pool(act().pool_score, weights.compressor); }
  TensorView index_pool_kv() const { return Pool(act().index_pool_kv, weights.indexer.compressor); }
  TensorView index_pool_score() const {
    return Pool(act().index_pool_score, weights.indexer.compressor);
  }
  TensorView Pool(const TensorView& memory, const CompressorWeights& compressor) const {
    return TensorView(memory.data, DType::kF32, {pass.num_tokens(), compressor.wkv.n});
  }
};

// All products of the sub-layer's input.
void ProjectInput(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  pass.Linear(a.act().x, a.weights.wq_a, a.act().query_low_rank);
  pass.Linear(a.act().x, a.weights.wkv, a.act().window_kv);
  if (a.indexed()) {
    pass.Linear(a.act().x, a.weights.indexer.weights_proj, a.act().index_raw_weight);
    pass.Linear(a.act().x, a.weights.indexer.compressor.wkv, a.index_pool_kv());
    pass.Linear(a.act().x, a.weights.indexer.compressor.wgate, a.index_pool_score());
  }
  if (a.ratio() != 0) {
    pass.Linear(a.act().x, a.weights.compressor.wkv, a.pool_kv());
    pass.Linear(a.act().x, a.weights.compressor.wgate, a.pool_score());
  }
}

// One compressor's step over the batch: `row` says what becomes of a completed entry.
CompressKvParams CompressParams(const AttentionLayer& a, const CompressorWeights& weights,
                                const TensorView& kv, const TensorView& score, CompressedRow row,
                                const CompressorStateView& state, const RowStore& entries) {
  const ForwardPass& pass = a.pass;
  return {.kv = kv,
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
          .entries = entries};
}

StoreWindowParams StoreWindowParamsOf(const AttentionLayer& a) {
  return {.latents = a.act().latents,
          .batch = a.pass.args.batch,
          .format = a.pass.formats.kv,
          .rope_dims = a.pass.config.rope_dims,
          .ring = a.cache.ring};
}

// The norm of the query's low rank, the window latents, and what the compressors complete, index
// keys included: an entry that closes with a token can be selected by that token.
void MakeRows(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  AttentionRowsParams params;
  params.query = {.x = a.act().query_low_rank,
                  .weight = a.weights.q_norm,
                  .eps = pass.config.rms_eps,
                  .out = a.act().query_low_rank};
  params.window = {.kv = a.act().window_kv,
                   .weight = a.weights.kv_norm,
                   .positions = pass.args.batch.positions,
                   .freqs = pass.freqs(a.layer),
                   .eps = pass.config.rms_eps,
                   .round_fp8 = RoundsLatentsToFp8(pass.formats.numerics, pass.formats.kv),
                   .latents = a.act().latents};
  if (a.indexed()) {
    params.index_keys =
        CompressParams(a, a.weights.indexer.compressor, a.index_pool_kv(), a.index_pool_score(),
                       CompressedRow::kIndexKey, a.cache.index_state, a.cache.index_keys);
  }
  if (a.ratio() != 0) {
    params.entries = CompressParams(a, a.weights.compressor, a.pool_kv(), a.pool_score(),
                                    CompressedRow::kLatent, a.cache.state, a.cache.entries);
  }
  if (a.one_token_each()) params.ring = StoreWindowParamsOf(a);
  pass.ops.AttentionRows(params, pass.stream);
}

void MakeQueries(const AttentionLayer& a) {
  const ForwardPass& pass = a.pass;
  const QueryNormRopeParams query{.q = a.act().query,
                                  .positions = pass.args.batch.positions,
                                  .freqs = pass.freqs(a.layer),
                                  .eps = pass.config.rms_eps};
  pass.Linear(a.act().query_low_rank, a.weights.wq_b, a.act().query);
  if (!a.indexed()) return pass.ops.QueryNormRope(query, pass.stream);
  pass.Linear(a.act().query_low_rank, a.weights.indexer.wq_b, a.act().index_query);
  pass.ops.QueryRows(
      {.query = query,
       .index = {.q = a.act().index_query,
                 .raw_weight = a.act().index_raw_weight,
                 .positions = pass.args.batch.positions,
                 .freqs = pass.freqs(a.layer),
                 .rounding = IndexRoundingOf(pass.formats.numerics, pass.formats.index_key),
                 .weight = a.act().index_weight}},
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

}  // namespace

void RunAttention(const ForwardPass& pass, int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  const AttentionLayer a{pass, layer, pass.weights.layers[index].attention,
                         pass.args.caches[index]};
  ProjectInput(a);
  MakeRows(a);
  MakeQueries(a);
  if (a.indexed()) SelectEntries(a);
  Attend(a);
  // Else by MakeRows: where a sequence has several tokens, Attend reads rows that this overwrites.
  if (!a.one_token_each()) pass.ops.StoreWindow(StoreWindowParamsOf(a), pass.stream);
  pass.Linear(pass.act.attention_out, a.weights.wo_a, pass.act.output_low_rank);
  pass.Linear(pass.act.output_low_rank, a.weights.wo_b, pass.act.y);
}

}  // namespace lodestone

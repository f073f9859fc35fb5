#pragma once

#include <cstdint>
#include <span>

#include "runtime/cache_format.h"
#include "runtime/cache_views.h"
#include "runtime/tensor.h"
#include "runtime/weight_format.h"

// One struct per op: shape, type and meaning of every field, the formula and its source.
//
// Dims: T tokens of the batch, B sequences in it, S sequence slots of the cache, P pages of the
// cache, D hidden, M residual streams (4), H heads, d head dim (512), r_d rotary dims (64), W
// window (128), H_i / d_i / K_i heads, dim and top-k of the indexer, E experts, I expert width.
// `act` is the activation type: kBf16, or kF32 under Numerics::kExact. Arithmetic is fp32
// everywhere; a result is rounded once, to the type of the tensor it is stored in ("round" below
// means to `act`: the identity for kF32). Section numbers are those of docs/model.md.
//
// Determinism: the value of a row depends on that row (and the cache rows it reads) only, never on
// the other rows of the batch, on the chunking or on the number of threads.
namespace lodestone {

// A matrix [groups * n, k] of a product.
struct MatrixSpec {
  WeightFormat format = WeightFormat::kBf16;
  int64_t n = 0;       // outputs per group
  int64_t k = 0;       // inputs per group; a multiple of 32 for kFp4
  int64_t groups = 1;  // out[t, g*n + i] = sum_j x[t, g*k + j] * weight[g*n + i, j]
  // False for a quantised matrix whose inputs are never rounded: wo_a, which the vendor widens to
  // bf16 (exact). A backend may do the same when it packs.
  bool rounds_inputs = true;
};

// The tensors of a matrix as a checkpoint holds them (runtime/weight_format.h).
// REQUIRES: no code and no scale is NaN.
struct MatrixSource {
  MatrixSpec spec;
  TensorView values;  // [groups * n, ValueColumns]
  TensorView scales;  // f8_e8m0 [ScaleRows(groups * n), ScaleColumns]; kFp8 and kFp4 only
};

// A matrix as the backend keeps it (Ops::PackWeight).
struct PackedWeight : MatrixSpec {
  TensorView data;  // backend's layout
};

// Which tokens belong to which sequence. Tokens of one sequence are adjacent, positions ascend
// by 1.
struct BatchIndex {
  TensorView positions;    // i32 [T]  absolute position of each token
  TensorView token_seq;    // i32 [T]  its sequence, 0..B-1
  TensorView seq_first;    // i32 [B]  first token of each sequence in the batch
  // i32 [B]  its number of tokens in the batch, >= 1. 0: one token that only fills the batch up.
  // Ops may compute it; its results mean nothing, and StoreWindow and CompressKv store nothing of
  // it.
  TensorView seq_tokens;
  TensorView seq_slot;     // i32 [B]  its slot in the ring windows and compressor states, 0..S-1
  TensorView block_table;  // i32 [B, max_pages]  its pages in token order; -1 beyond the last
  int64_t num_tokens() const { return positions.shape[0]; }
  int64_t num_seqs() const { return seq_first.shape[0]; }
};

// streams[t, m, :] = table[id_t] for every m. Spec 5.
struct EmbedTokensParams {
  TensorView ids;      // i32 [T], in [0, V)
  TensorView table;    // bf16 [V, D]
  TensorView streams;  // act [T, M, D]  out
};

// Manifold-constrained hyper-connection before a sub-layer, fused with the sub-layer's RMSNorm.
// Spec 6.1, 7.1: mix = (fn z) * rsqrt(mean(z^2) + rms_eps), z = flatten(streams[t]);
// pre = sigmoid(mix[0:M]*scale[0] + base) + hc_eps; post = 2 sigmoid(mix[M:2M]*scale[1] + base);
// comb = Sinkhorn(mix[2M:]*scale[2] + base): row softmax + hc_eps, column normalisation, then
// (iters - 1) row and column passes; the last operation is a column normalisation.
// u = round(sum_m pre[m] * streams[t, m]); x = round(norm_weight * u * rsqrt(mean(u^2) + rms_eps)).
struct HcPreParams {
  TensorView streams;      // act [T, M, D]
  PackedWeight fn;         // f32 [M*(M+2), M*D]
  TensorView base;         // f32 [M*(M+2)]
  TensorView scale;        // f32 [3]
  TensorView norm_weight;  // bf16 [D]
  float rms_eps = 0;
  float hc_eps = 0;
  int sinkhorn_iters = 0;
  TensorView scratch;  // u8 [HcPreScratchBytes(T, M)]
  TensorView x;        // act [T, D]     out: input of the sub-layer
  TensorView post;     // f32 [T, M]     out
  TensorView comb;     // f32 [T, M, M]  out: first index source stream, second destination
};

// streams'[t, k] = round(post[t, k] * x[t] + sum_j comb[t, j, k] * streams[t, j]); in place.
// Spec 6.2: the mixing applied is comb transposed.
struct HcPostParams {
  TensorView x;        // act [T, D]  output of the sub-layer
  TensorView post;     // f32 [T, M]
  TensorView comb;     // f32 [T, M, M]
  TensorView streams;  // act [T, M, D]  in and out
};

// HcPost of one sub-layer, then HcPre of the next: the same results as the two ops. REQUIRES: the
// streams of both are the same. pre.post and pre.comb may be those of `post`.
struct HcBoundaryParams {
  HcPostParams post;
  HcPreParams pre;
};

// Final collapse of the streams and final norm, for chosen rows only. Spec 6.3, 10:
// pre[m] = sigmoid(mix[m] * scale[0] + base[m]) + hc_eps;
// u = round(sum_m pre[m] * streams[row, m]); x = round(RMSNorm(u)).
struct HcHeadParams {
  TensorView streams;      // act [T, M, D]
  TensorView rows;         // i32 [R], in [0, T)
  PackedWeight fn;         // f32 [M, M*D]
  TensorView base;         // f32 [M]
  TensorView scale;        // f32 [1]
  TensorView norm_weight;  // bf16 [D]
  float rms_eps = 0;
  float hc_eps = 0;
  TensorView x;  // act [R, D]  out
};

// out = round_to(out.dtype, x weight^T), grouped if weight.groups > 1. Sums run over k in ascending
// order in fp32 with one fused multiply-add per term, so they do not depend on tiling.
// kFp8, kFp4 (spec 4.4): per slice of ScaledInputs inputs such a sum over the codes, times the
// scales (powers of two: exact); slices are added in ascending order in fp32. With `round_fp8`, and
// unless weight.rounds_inputs is false, x is replaced by Q8(x) in groups of 128 inputs (spec 4.2)
// first.
struct LinearParams {
  TensorView x;            // act [T, groups * k]
  PackedWeight weight;     // [groups * n, k]
  bool round_fp8 = false;  // RoundsProductInputs(numerics); no effect on kBf16 and kF32 weights
  TensorView scratch = {};  // u8 [LinearScratchBytes(T, groups * k, round_fp8)]
  TensorView out;           // act or f32 [T, groups * n]
};

// out = round(weight * x * rsqrt(mean(x^2) + eps)). Spec 7.1. May run in place.
struct RmsNormParams {
  TensorView x;       // act [T, N]
  TensorView weight;  // bf16 [N]
  float eps = 0;
  TensorView out;  // act [T, N]
};

// Rotary angles: a = fp32(position) * freqs[i], rounded to fp32, then fp32 cos and sin (spec 7.2).
// Interleaved pairs (x[2i], x[2i+1]) of the last r_d dims, multiplied by exp(+j a) (spec 7.3).

// Per-head norm without weight, then rotation, in place. Spec 8.1. For bf16 activations the vendor
// rounds after every step: s = round(q*q); m = round(mean(s)); r = round(rsqrt(round(m + eps)));
// q = round(q * r); then the rotary dims are rotated and rounded.
struct QueryNormRopeParams {
  TensorView q;          // act [T, H, d]  in and out
  TensorView positions;  // i32 [T]
  TensorView freqs;      // f32 [r_d / 2]
  float eps = 0;
};

// Window latent of each token, spec 8.2: latents = RMSNorm(kv; weight), rotated, then, if
// `round_fp8`, the first d - r_d dims through QDQ8 in groups of 64 (spec 4.3).
struct WindowLatentParams {
  TensorView kv;         // act [T, d]
  TensorView weight;     // bf16 [d]
  TensorView positions;  // i32 [T]
  TensorView freqs;      // f32 [r_d / 2]
  float eps = 0;
  bool round_fp8 = false;
  TensorView latents;  // act [T, d]  out
};

// Writes the last min(W, tokens) latents of every sequence into its ring: position p goes to row
// p mod W. Runs after SparseAttention of the same layer, which reads the rows it overwrites.
struct StoreWindowParams {
  TensorView latents;  // act [T, d]
  BatchIndex batch;
  KvFormat format = KvFormat::kBf16;
  int64_t rope_dims = 0;  // r_d
  RowStore ring;          // [S, W]  in and out
};

// What a compressor does to a pooled vector before it is stored.
enum class CompressedRow : uint8_t { kLatent, kIndexKey };

// Gated pooling of `ratio` tokens into one entry, and the update of the fp32 state of the group in
// progress. Spec 8.4, 8.5. For every sequence and every group b that its tokens complete:
//   P = softmax-weighted sum over the group's tokens (ratio 4: half A of group b-1 with half B of
//   group b), scores including ape; e = round(RMSNorm(round(P))); rotate at position b * ratio;
//   kLatent: QDQ8 of the first c - r_d dims if round_fp8;
//   kIndexKey: Hadamard * c^-1/2, rounded, then by `index_rounding`;
//   stored as entry b: page block_table[b*ratio / 256], row b % (256 / ratio).
// Sums over a group run in token order. Group 0 of ratio 4 takes nothing from rows 0..3, whatever a
// previous user of the slot left there. Rows of a completed group are not cleared.
struct CompressKvParams {
  TensorView kv;     // f32 [T, w]  w = c * (ratio == 4 ? 2 : 1)
  TensorView score;  // f32 [T, w]  without ape
  TensorView ape;    // f32 [ratio, w]
  TensorView norm_weight;  // bf16 [c]
  TensorView freqs;        // f32 [r_d / 2]
  int64_t ratio = 0;       // 4 or 128
  float eps = 0;
  BatchIndex batch;
  DType act = DType::kBf16;  // where "round" goes
  CompressedRow row = CompressedRow::kLatent;
  bool round_fp8 = false;                                // kLatent
  KvFormat kv_format = KvFormat::kBf16;                  // kLatent
  IndexRounding index_rounding = IndexRounding::kNone;   // kIndexKey
  IndexKeyFormat index_format = IndexKeyFormat::kBf16;   // kIndexKey
  // Rows: ratio 4: 0..3 the last completed group, 4..7 the one in progress; ratio 128: row t % 128.
  TensorView state_kv;     // f32 [S, ratio 4: 8 | 128: 128, w]  in and out
  TensorView state_score;  // f32, same shape; scores include ape; -inf where nothing was written
  RowStore entries;        // [P, 256 / ratio]  out
};

// What a layer's attention makes of its first products: the ops of its members, in this order. None
// reads what another writes, but `ring`.
struct AttentionRowsParams {
  RmsNormParams query;
  WindowLatentParams window;
  CompressKvParams index_keys;  // kv empty(): none
  CompressKvParams entries;     // kv empty(): none
  // latents empty(): none, as it must be unless every sequence has one token: then no row is
  // overwritten that SparseAttention is yet to read. Else of window.latents.
  StoreWindowParams ring;
};

// Index query, spec 8.6: rotate the last r_d of d_i dims, round; Hadamard * d_i^-1/2 per head,
// round; then by `rounding`: kFp4: QDQ4 in groups of 32; kFp8: e4m3 codes with one scale amax/448
// per head, folded into the weight. weight[t, h] = round(round(raw) * (d_i * H_i)^-1/2) [* scale].
struct IndexQueryParams {
  TensorView q;           // act [T, H_i, d_i]  in and out
  TensorView raw_weight;  // act [T, H_i]
  TensorView positions;   // i32 [T]
  TensorView freqs;       // f32 [r_d / 2]
  IndexRounding rounding = IndexRounding::kNone;
  TensorView weight;  // f32 [T, H_i]  out
};

// Both kinds of queries of a layer.
struct QueryRowsParams {
  QueryNormRopeParams query;
  IndexQueryParams index;
};

// Lightning indexer: for each token the K_i visible entries with the highest score
//   score[t, n] = sum_h weight[t, h] * relu(dot(q[t, h], key[n]))      n < num_visible[t]
// Source: vendor inference/model.py, Indexer.forward. Dot products run over ascending dims and
// heads are added in ascending order, in fp32; fp8 keys are widened codes and the key's scale
// multiplies the finished sum. Ties go to the lower entry. relu keeps a NaN, and NaN scores sort
// below every number.
struct IndexTopKParams {
  TensorView q;       // act [T, H_i, d_i]  after IndexQuery
  TensorView weight;  // f32 [T, H_i]       may be negative
  RowStore keys;      // [P, 64]
  IndexKeyFormat format = IndexKeyFormat::kBf16;
  BatchIndex batch;
  TensorView num_visible;  // i32 [T]  (position + 1) / 4; 0 gives a row of -1
  TensorView scratch;      // u8 [IndexTopKScratchBytes(T, largest num_visible)]
  TensorView top_entries;  // i32 [T, K_i]  out: ascending entry numbers, then -1
  TensorView scores;       // f32 [T, >= largest num_visible]  optional out (empty(): not wanted)
};

// Attention over the ring window, then the chosen (or all) compressed entries, with a sink; then
// the rotation of the output is undone. Spec 8.3, 8.7, 8.8. Keys in this order: window positions
// max(0, p-W+1)..p ascending, then entries ascending. A window position inside this batch is read
// from `latents`, an older one from the ring.
//   s_j = (q . kv_j) * d^-1/2; m = max_j s_j; P_j = exp(s_j - m); den = sum_j P_j + exp(sink - m);
//   o = round((sum_j round(P_j) * kv_j) / den); last r_d dims: rotated by -position, rounded.
struct SparseAttentionParams {
  TensorView q;        // act [T, H, d]
  TensorView latents;  // act [T, d]  this batch's own window latents
  BatchIndex batch;
  int64_t window = 0;  // W
  RowStore ring;       // [S, W]
  KvFormat format = KvFormat::kBf16;
  // Compressed part; `ratio` 0: none. Ratio 4: top_entries. Ratio 128: every entry below
  // (position + 1) / ratio, and top_entries is empty().
  int64_t ratio = 0;
  RowStore entries;        // [P, 256 / ratio]
  TensorView top_entries;  // i32 [T, K_i]  ascending, -1 = none
  TensorView sink;         // f32 [H]
  TensorView freqs;        // f32 [r_d / 2]
  TensorView scratch;      // u8 [SparseAttentionScratchBytes(largest number of keys, H, d, format)]
  TensorView out;          // act [T, H, d]
};

// Expert choice, spec 9.1: g = x gate^T in fp32; sc = sqrt(softplus(g)) (safe for any g);
// experts = tid2eid[id] if given, else the `experts_per_token` largest sc + bias (ties to the lower
// expert); weight = sc / sum(sc of the chosen) * scale. A row whose chosen scores all underflow
// gets equal weights. Stored in ascending expert order.
struct MoeRouteParams {
  TensorView x;          // act [T, D]
  PackedWeight gate;     // kBf16 [E, D]
  TensorView bias;       // f32 [E]; empty() with tid2eid
  TensorView tid2eid;    // i32 [V, experts_per_token]; empty() with bias
  TensorView ids;        // i32 [T]
  float scale = 1;
  TensorView experts;  // i32 [T, experts_per_token]  out
  TensorView weights;  // f32 [T, experts_per_token]  out
};

struct ExpertWeights {
  PackedWeight w1;  // [I, D]
  PackedWeight w3;  // [I, D]
  PackedWeight w2;  // [D, I]
};

// Spec 9.2, 9.3: gate = min(round(w1 x), limit); up = clamp(round(w3 x), -limit, limit);
// a = silu(gate) * up [* weight, routed only]; y = round(w2 round(a));
// out = round(sum over chosen experts, ascending, of y + shared y), summed in fp32.
struct MoeExpertsParams {
  TensorView x;        // act [T, D]
  TensorView experts;  // i32 [T, experts_per_token]  ascending
  TensorView weights;  // f32 [T, experts_per_token]
  std::span<const ExpertWeights> routed;  // E
  const ExpertWeights* shared = nullptr;
  float limit = 0;         // swiglu_limit
  bool round_fp8 = false;  // as in LinearParams, for all three products
  TensorView scratch;  // u8 [MoeExpertsScratchBytes(T, experts_per_token, D, I, E)]
  TensorView out;      // act [T, D]
};

// Digest of rows: sum mod 2^64 over rows of a mixed XXH64 of the row bytes, seeded with kind, layer
// and entry (kernels/numeric/row_digest.h). Sums commute, so digests of slots add up to those of
// the request, in any order and on any device.
using RowDigests = uint64_t[kNumCacheKinds];

// Copies the rows of `runs`, in order, to `slot` (pack) or from it (scatter), and adds the digest
// of every row to digests[kind]. REQUIRES: the runs' bytes sum to at most slot_bytes.
struct MoveRowsParams {
  std::span<const RowRun> runs;
  std::byte* slot = nullptr;
  int64_t slot_bytes = 0;
  uint64_t* digests = nullptr;  // [kNumCacheKinds]  in and out
};

}  // namespace lodestone

#include "kernels/op_checks.h"

#include <initializer_list>
#include <string>

#include "base/logging.h"
#include "runtime/cache_format.h"

namespace lodestone {
namespace {

constexpr int64_t kAny = -1;

// Names an op while its fields are checked.
class Checker {
 public:
  explicit Checker(const char* op) : op_(op) {}

  // `view` has this type and shape (kAny: any size), and its last dimension is contiguous.
  void Shape(const char* field, const TensorView& view, DType dtype,
             std::initializer_list<int64_t> dims) const {
    bool same = view.dtype == dtype && view.rank == static_cast<int>(dims.size());
    int axis = 0;
    for (int64_t dim : dims) {
      if (!same) break;
      same = dim == kAny || view.shape[axis] == dim;
      ++axis;
    }
    CHECK(same) << op_ << ": " << field << " is " << view.ShapeString() << ", want "
                << TensorViewText(dtype, dims);
    CHECK(!view.empty() || view.num_elements() == 0) << op_ << ": " << field << " has no memory";
    CHECK(view.rank == 0 || view.strides[view.rank - 1] == 1)
        << op_ << ": " << field << " has stride " << view.strides[view.rank - 1] << ", want 1";
  }

  void True(bool condition, const char* text) const { CHECK(condition) << op_ << ": " << text; }

  void Equal(const char* what, int64_t got, int64_t want) const {
    CHECK(got == want) << op_ << ": " << what << " is " << got << ", want " << want;
  }

  void Activation(const char* field, DType dtype) const {
    CHECK(dtype == DType::kBf16 || dtype == DType::kF32)
        << op_ << ": " << field << " is " << Name(dtype) << ", want BF16 or F32";
  }

  void Weight(const char* field, const PackedWeight& weight, int64_t n, int64_t k) const {
    CHECK(weight.n == n && weight.k == k) << op_ << ": " << field << " is [" << weight.n << ", "
                                          << weight.k << "], want [" << n << ", " << k << "]";
    CHECK(!weight.data.empty()) << op_ << ": " << field << " has no memory";
  }

  void Scratch(const TensorView& scratch, int64_t num_bytes) const {
    if (num_bytes == 0) return;
    CHECK(!scratch.empty() && scratch.dtype == DType::kU8 && scratch.num_bytes() >= num_bytes)
        << op_ << ": scratch is " << scratch.ShapeString() << ", want U8[" << num_bytes << "]";
  }

  void Rows(const char* field, const RowStore& store, int64_t rows, RowBytes bytes) const {
    Shape(field, store.payload, DType::kU8, {kAny, rows, bytes.payload});
    if (bytes.scale > 0) {
      Shape(field, store.scale, DType::kU8, {store.payload.shape[0], rows, bytes.scale});
    }
  }

  void Batch(const BatchIndex& batch, int64_t num_tokens) const {
    Shape("batch.positions", batch.positions, DType::kI32, {num_tokens});
    Shape("batch.token_seq", batch.token_seq, DType::kI32, {num_tokens});
    Shape("batch.seq_first", batch.seq_first, DType::kI32, {kAny});
    const int64_t num_seqs = batch.num_seqs();
    Shape("batch.seq_tokens", batch.seq_tokens, DType::kI32, {num_seqs});
    Shape("batch.seq_slot", batch.seq_slot, DType::kI32, {num_seqs});
    Shape("batch.block_table", batch.block_table, DType::kI32, {num_seqs, kAny});
  }

 private:
  static std::string TensorViewText(DType dtype, std::initializer_list<int64_t> dims) {
    std::string text = std::string(Name(dtype)) + "[";
    for (int64_t dim : dims) {
      if (text.back() != '[') text += ", ";
      text += dim == kAny ? "?" : std::to_string(dim);
    }
    return text + "]";
  }

  const char* const op_;
};

}  // namespace

void CheckMatrixSource(const MatrixSource& source, const TensorView& packed, int64_t num_bytes) {
  const Checker check("PackWeight");
  const MatrixSpec& spec = source.spec;
  const WeightFormat format = spec.format;
  CHECK(spec.n >= 1 && spec.k >= 1 && spec.groups >= 1)
      << "PackWeight: matrix is [" << spec.groups << " x " << spec.n << ", " << spec.k << "]";
  check.True(format != WeightFormat::kFp4 || spec.k % ScaledInputs(format) == 0,
             "inputs of an FP4 matrix are not a multiple of 32");
  const int64_t rows = spec.groups * spec.n;
  check.Shape("values", source.values, ValueType(format), {rows, ValueColumns(format, spec.k)});
  if (IsQuantised(format)) {
    check.Shape("scales", source.scales, DType::kF8E8M0,
                {ScaleRows(format, rows), ScaleColumns(format, spec.k)});
  }
  CHECK(packed.num_bytes() >= num_bytes)
      << "PackWeight: packed has " << packed.num_bytes() << " bytes, want " << num_bytes;
}

void CheckEmbedTokens(const EmbedTokensParams& p) {
  const Checker check("EmbedTokens");
  check.Shape("table", p.table, DType::kBf16, {kAny, kAny});
  check.Shape("ids", p.ids, DType::kI32, {kAny});
  check.Activation("streams", p.streams.dtype);
  check.Shape("streams", p.streams, p.streams.dtype, {p.ids.shape[0], kAny, p.table.shape[1]});
}

void CheckHcPre(const HcPreParams& p, int64_t scratch_bytes) {
  const Checker check("HcPre");
  const DType act = p.streams.dtype;
  check.Activation("streams", act);
  check.Shape("streams", p.streams, act, {kAny, kAny, kAny});
  const int64_t tokens = p.streams.shape[0], m = p.streams.shape[1], d = p.streams.shape[2];
  check.Weight("fn", p.fn, m * (m + 2), m * d);
  check.Equal("fn.groups", p.fn.groups, 1);
  check.Shape("base", p.base, DType::kF32, {m * (m + 2)});
  check.Shape("scale", p.scale, DType::kF32, {3});
  check.Shape("norm_weight", p.norm_weight, DType::kBf16, {d});
  check.True(p.sinkhorn_iters >= 1, "sinkhorn_iters is below 1");
  check.Scratch(p.scratch, scratch_bytes);
  check.Shape("x", p.x, act, {tokens, d});
  check.Shape("post", p.post, DType::kF32, {tokens, m});
  check.Shape("comb", p.comb, DType::kF32, {tokens, m, m});
}

void CheckHcPost(const HcPostParams& p) {
  const Checker check("HcPost");
  const DType act = p.streams.dtype;
  check.Activation("streams", act);
  check.Shape("streams", p.streams, act, {kAny, kAny, kAny});
  const int64_t tokens = p.streams.shape[0], m = p.streams.shape[1];
  check.Shape("x", p.x, act, {tokens, p.streams.shape[2]});
  check.Shape("post", p.post, DType::kF32, {tokens, m});
  check.Shape("comb", p.comb, DType::kF32, {tokens, m, m});
}

void CheckHcHead(const HcHeadParams& p) {
  const Checker check("HcHead");
  const DType act = p.streams.dtype;
  check.Activation("streams", act);
  check.Shape("streams", p.streams, act, {kAny, kAny, kAny});
  const int64_t m = p.streams.shape[1], d = p.streams.shape[2];
  check.Shape("rows", p.rows, DType::kI32, {kAny});
  check.Weight("fn", p.fn, m, m * d);
  check.Equal("fn.groups", p.fn.groups, 1);
  check.Shape("base", p.base, DType::kF32, {m});
  check.Shape("scale", p.scale, DType::kF32, {1});
  check.Shape("norm_weight", p.norm_weight, DType::kBf16, {d});
  check.Shape("x", p.x, act, {p.rows.shape[0], d});
}

void CheckLinear(const LinearParams& p) {
  const Checker check("Linear");
  check.Activation("x", p.x.dtype);
  check.Activation("out", p.out.dtype);
  check.True(p.out.dtype == p.x.dtype || p.out.dtype == DType::kF32,
             "out is BF16 although x is F32");
  check.Weight("weight", p.weight, p.weight.n, p.weight.k);
  check.Shape("x", p.x, p.x.dtype, {kAny, p.weight.groups * p.weight.k});
  check.Shape("out", p.out, p.out.dtype, {p.x.shape[0], p.weight.groups * p.weight.n});
}

void CheckRmsNorm(const RmsNormParams& p) {
  const Checker check("RmsNorm");
  check.Activation("x", p.x.dtype);
  check.Shape("x", p.x, p.x.dtype, {kAny, kAny});
  check.Shape("weight", p.weight, DType::kBf16, {p.x.shape[1]});
  check.Shape("out", p.out, p.x.dtype, {p.x.shape[0], p.x.shape[1]});
}

void CheckQueryNormRope(const QueryNormRopeParams& p) {
  const Checker check("QueryNormRope");
  check.Activation("q", p.q.dtype);
  check.Shape("q", p.q, p.q.dtype, {kAny, kAny, kAny});
  check.Shape("positions", p.positions, DType::kI32, {p.q.shape[0]});
  check.Shape("freqs", p.freqs, DType::kF32, {kAny});
  check.True(2 * p.freqs.shape[0] <= p.q.shape[2], "more rotary dims than dims");
}

void CheckWindowLatent(const WindowLatentParams& p) {
  const Checker check("WindowLatent");
  check.Activation("kv", p.kv.dtype);
  check.Shape("kv", p.kv, p.kv.dtype, {kAny, kAny});
  const int64_t tokens = p.kv.shape[0], d = p.kv.shape[1];
  check.Shape("weight", p.weight, DType::kBf16, {d});
  check.Shape("positions", p.positions, DType::kI32, {tokens});
  check.Shape("freqs", p.freqs, DType::kF32, {kAny});
  const int64_t rest = d - 2 * p.freqs.shape[0];
  check.True(rest >= 0, "more rotary dims than dims");
  check.True(!p.round_fp8 || rest % kFp8KvGroup == 0, "FP8 dims are not a multiple of 64");
  check.Shape("latents", p.latents, p.kv.dtype, {tokens, d});
}

void CheckStoreWindow(const StoreWindowParams& p) {
  const Checker check("StoreWindow");
  check.Activation("latents", p.latents.dtype);
  check.Shape("latents", p.latents, p.latents.dtype, {kAny, kAny});
  check.Batch(p.batch, p.latents.shape[0]);
  check.Rows("ring", p.ring, kAny, LatentRowBytes(p.format, p.latents.shape[1], p.rope_dims));
}

void CheckCompressKv(const CompressKvParams& p) {
  const Checker check("CompressKv");
  check.True(p.ratio == 4 || p.ratio == 128, "ratio is neither 4 nor 128");
  check.Activation("act", p.act);
  check.Shape("norm_weight", p.norm_weight, DType::kBf16, {kAny});
  const int64_t c = p.norm_weight.shape[0];
  const int64_t width = p.ratio == 4 ? 2 * c : c;
  const int64_t state_rows = p.ratio == 4 ? 8 : p.ratio;
  check.Shape("kv", p.kv, DType::kF32, {kAny, width});
  check.Shape("score", p.score, DType::kF32, {p.kv.shape[0], width});
  check.Shape("ape", p.ape, DType::kF32, {p.ratio, width});
  check.Shape("freqs", p.freqs, DType::kF32, {kAny});
  check.Batch(p.batch, p.kv.shape[0]);
  check.Shape("state_kv", p.state_kv, DType::kF32, {kAny, state_rows, width});
  check.Shape("state_score", p.state_score, DType::kF32, {p.state_kv.shape[0], state_rows, width});
  const bool latent = p.row == CompressedRow::kLatent;
  if (!latent) check.True((c & (c - 1)) == 0, "index key dims are not a power of two");
  check.Rows("entries", p.entries, kPageTokens / p.ratio,
             latent ? LatentRowBytes(p.kv_format, c, 2 * p.freqs.shape[0])
                    : IndexKeyRowBytes(p.index_format, c));
}

void CheckIndexQuery(const IndexQueryParams& p) {
  const Checker check("IndexQuery");
  check.Activation("q", p.q.dtype);
  check.Shape("q", p.q, p.q.dtype, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dims = p.q.shape[2];
  check.True((dims & (dims - 1)) == 0 && dims % kFp4Group == 0,
             "dims are not a power of two >= 32");
  check.Shape("raw_weight", p.raw_weight, p.q.dtype, {tokens, heads});
  check.Shape("positions", p.positions, DType::kI32, {tokens});
  check.Shape("freqs", p.freqs, DType::kF32, {kAny});
  check.True(2 * p.freqs.shape[0] <= dims, "more rotary dims than dims");
  check.Shape("weight", p.weight, DType::kF32, {tokens, heads});
}

void CheckIndexTopK(const IndexTopKParams& p) {
  const Checker check("IndexTopK");
  check.Activation("q", p.q.dtype);
  check.Shape("q", p.q, p.q.dtype, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0];
  check.Shape("weight", p.weight, DType::kF32, {tokens, p.q.shape[1]});
  check.Batch(p.batch, tokens);
  check.Rows("keys", p.keys, kPageTokens / 4, IndexKeyRowBytes(p.format, p.q.shape[2]));
  check.Shape("num_visible", p.num_visible, DType::kI32, {tokens});
  check.Shape("top_entries", p.top_entries, DType::kI32, {tokens, kAny});
  if (!p.scores.empty()) check.Shape("scores", p.scores, DType::kF32, {tokens, kAny});
}

void CheckSparseAttention(const SparseAttentionParams& p) {
  const Checker check("SparseAttention");
  const DType act = p.q.dtype;
  check.Activation("q", act);
  check.Shape("q", p.q, act, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], d = p.q.shape[2];
  check.Shape("latents", p.latents, act, {tokens, d});
  check.Batch(p.batch, tokens);
  check.Shape("freqs", p.freqs, DType::kF32, {kAny});
  const RowBytes bytes = LatentRowBytes(p.format, d, 2 * p.freqs.shape[0]);
  check.Rows("ring", p.ring, p.window, bytes);
  check.True(p.ratio == 0 || p.ratio == 4 || p.ratio == 128, "ratio is none of 0, 4, 128");
  if (p.ratio != 0) check.Rows("entries", p.entries, kPageTokens / p.ratio, bytes);
  if (p.ratio == 4) check.Shape("top_entries", p.top_entries, DType::kI32, {tokens, kAny});
  check.Shape("sink", p.sink, DType::kF32, {heads});
  check.Shape("out", p.out, act, {tokens, heads, d});
}

void CheckMoeRoute(const MoeRouteParams& p) {
  const Checker check("MoeRoute");
  check.Activation("x", p.x.dtype);
  check.Shape("x", p.x, p.x.dtype, {kAny, kAny});
  const int64_t tokens = p.x.shape[0];
  check.Weight("gate", p.gate, p.gate.n, p.x.shape[1]);
  check.Equal("gate.groups", p.gate.groups, 1);
  check.Shape("experts", p.experts, DType::kI32, {tokens, kAny});
  const int64_t chosen = p.experts.shape[1];
  check.True(chosen >= 1 && chosen <= p.gate.n, "experts per token exceed the experts");
  check.True(p.bias.empty() != p.tid2eid.empty(), "exactly one of bias and tid2eid must be given");
  if (!p.bias.empty()) check.Shape("bias", p.bias, DType::kF32, {p.gate.n});
  if (!p.tid2eid.empty()) {
    check.Shape("tid2eid", p.tid2eid, DType::kI32, {kAny, chosen});
    check.Shape("ids", p.ids, DType::kI32, {tokens});
  }
  check.Shape("weights", p.weights, DType::kF32, {tokens, chosen});
}

void CheckMoeExperts(const MoeExpertsParams& p, int64_t scratch_bytes) {
  const Checker check("MoeExperts");
  check.Activation("x", p.x.dtype);
  check.Shape("x", p.x, p.x.dtype, {kAny, kAny});
  const int64_t tokens = p.x.shape[0], d = p.x.shape[1];
  check.Shape("experts", p.experts, DType::kI32, {tokens, kAny});
  check.Shape("weights", p.weights, DType::kF32, {tokens, p.experts.shape[1]});
  check.True(!p.routed.empty(), "no routed experts");
  const auto check_expert = [&](const ExpertWeights& expert) {
    check.Weight("w1", expert.w1, expert.w1.n, d);
    check.Weight("w3", expert.w3, expert.w1.n, d);
    check.Weight("w2", expert.w2, d, expert.w1.n);
  };
  for (const ExpertWeights& expert : p.routed) check_expert(expert);
  if (p.shared != nullptr) check_expert(*p.shared);
  check.Scratch(p.scratch, scratch_bytes);
  check.Shape("out", p.out, p.x.dtype, {tokens, d});
}

void CheckMoveRows(const MoveRowsParams& p) {
  const Checker check("MoveRows");
  check.True(p.digests != nullptr, "no digests");
  int64_t num_bytes = 0;
  for (const RowRun& run : p.runs) {
    check.True(run.num_parts == 1 || run.num_parts == 2, "a row has neither one nor two parts");
    check.True(run.num_rows >= 0, "a run has a negative number of rows");
    check.True(run.pages == nullptr || run.rows_per_page > 0, "a page has no rows");
    num_bytes += run.bytes();
  }
  CHECK(num_bytes <= p.slot_bytes)
      << "MoveRows: runs have " << num_bytes << " bytes, the slot " << p.slot_bytes;
}

}  // namespace lodestone

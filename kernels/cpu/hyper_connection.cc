#include <cmath>

#include "base/logging.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace lodestone::cpu {
namespace {

constexpr int64_t kMixTokens = 16;  // tokens whose mixes are formed side by side

// The flattened streams of the tokens as rows [T, M * D].
TensorView FlatStreams(const TensorView& streams) {
  CHECK(streams.strides[1] == streams.shape[2] && streams.shape[1] <= kMaxStreams)
      << "streams are " << streams.ShapeString() << " with stride " << streams.strides[1]
      << ", want dense streams, at most " << kMaxStreams;
  TensorView flat = streams;
  flat.rank = 2;
  flat.shape = {streams.shape[0], streams.shape[1] * streams.shape[2]};
  flat.strides = {streams.strides[0], 1};
  return flat;
}

float MeanSquareFactor(const Context& context, const TensorView& flat, int64_t token, float eps) {
  const int64_t n = flat.shape[1];
  const float mean =
      context.simd.sum_squares(RowPointer(flat, token), IsBf16(flat), n) / static_cast<float>(n);
  return 1.0f / std::sqrt(mean + eps);
}

// Collapses the streams of one token with `pre` and normalises the result.
void CollapseAndNorm(const Context& context, const TensorView& streams, int64_t token,
                     const float* pre, const TensorView& norm_weight, float eps, std::byte* x) {
  const int64_t dims = streams.shape[2];
  const bool bf16 = IsBf16(streams);
  context.simd.collapse_streams(RowPointer(streams, token), pre, streams.shape[1], dims, bf16, x);
  context.simd.rms_norm(x, norm_weight.as<uint16_t>(), eps, dims, bf16, x);
}

// At most kMixTokens tokens from `first`; mix [tokens, n] is theirs.
void MixTokens(const Context& context, const HcPreParams& p, const TensorView& flat, int64_t first,
               int64_t count, const float* mix) {
  const int64_t m = p.streams.shape[1];
  float factor[kMixTokens];
  float pre[kMixTokens * kMaxStreams];
  for (int64_t t = 0; t < count; ++t) {
    factor[t] = MeanSquareFactor(context, flat, first + t, p.rms_eps);
  }
  HcMixArgs args;
  args.mix = mix;
  args.mix_stride = p.fn.n;
  args.factor = factor;
  args.num_tokens = count;
  args.num_streams = m;
  args.base = p.base.as<float>();
  args.scale = p.scale.as<float>();
  args.eps = p.hc_eps;
  args.sinkhorn_iters = p.sinkhorn_iters;
  args.pre = pre;
  args.post = p.post.row<float>(first);
  args.comb = p.comb.row<float>(first);
  context.simd.hc_mix(args);
  for (int64_t t = 0; t < count; ++t) {
    CollapseAndNorm(context, p.streams, first + t, pre + t * m, p.norm_weight, p.rms_eps,
                    RowPointer(p.x, first + t));
  }
}

}  // namespace

int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) {
  return num_tokens * num_streams * (num_streams + 2) * static_cast<int64_t>(sizeof(float));
}

void HcPre(const Context& context, const HcPreParams& p, ThreadPool& pool) {
  CHECK(p.post.strides[0] == p.streams.shape[1] &&
        p.comb.strides[0] == p.streams.shape[1] * p.streams.shape[1])
      << "HcPre: post and comb must be dense";
  const TensorView flat = FlatStreams(p.streams);
  const int64_t token_ns = GemmNs(1, p.fn.n, p.fn.k, p.fn.format) / 8 + p.fn.k / 4 + 300;
  ForRanges(pool, p.streams.shape[0], token_ns, 4, [&](int64_t first, int64_t count) {
    GemmArgs args = GemmOf(flat.Rows(first, count), p.fn, 0);
    float* mix = p.scratch.as<float>() + first * p.fn.n;
    args.out = mix;
    args.out_stride = p.fn.n;
    context.simd.gemm(args);
    for (int64_t t = 0; t < count; t += kMixTokens) {
      MixTokens(context, p, flat, first + t, std::min(kMixTokens, count - t), mix + t * p.fn.n);
    }
  });
}

void HcPost(const Context& context, const HcPostParams& p, ThreadPool& pool) {
  const int64_t m = p.streams.shape[1];
  const int64_t dims = p.streams.shape[2];
  FlatStreams(p.streams);  // checks
  ForRanges(pool, p.x.shape[0], m * dims / 4 + 1, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      context.simd.hc_post(RowPointer(p.x, t), p.post.row<float>(t), p.comb.row<float>(t), m, dims,
                           IsBf16(p.x), RowPointer(p.streams, t));
    }
  });
}

void HcHead(const Context& context, const HcHeadParams& p) {
  const TensorView flat = FlatStreams(p.streams);
  const int64_t m = p.streams.shape[1];
  const int32_t* rows = p.rows.as<int32_t>();
  for (int64_t first = 0; first < p.rows.shape[0]; first += kMixTokens) {
    const int64_t count = std::min(kMixTokens, p.rows.shape[0] - first);
    float mix[kMixTokens * kMaxStreams];
    float factor[kMixTokens];
    float pre[kMixTokens * kMaxStreams];
    GemmArgs product = GemmOf(flat, p.fn, 0);
    product.rows = rows + first;
    product.num_rows = count;
    product.out = mix;
    product.out_stride = m;
    context.simd.gemm(product);
    for (int64_t r = 0; r < count; ++r) {
      factor[r] = MeanSquareFactor(context, flat, rows[first + r], p.rms_eps);
    }
    HcMixArgs args;
    args.mix = mix;
    args.mix_stride = m;
    args.factor = factor;
    args.num_tokens = count;
    args.num_streams = m;
    args.base = p.base.as<float>();
    args.scale = p.scale.as<float>();
    args.eps = p.hc_eps;
    args.pre = pre;
    context.simd.hc_mix(args);
    for (int64_t r = 0; r < count; ++r) {
      CollapseAndNorm(context, p.streams, rows[first + r], pre + r * m, p.norm_weight, p.rms_eps,
                      RowPointer(p.x, first + r));
    }
  }
}

}  // namespace lodestone::cpu

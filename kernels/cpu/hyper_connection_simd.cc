#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

using cpu::HcMixArgs;
using cpu::kMaxStreams;

constexpr int64_t kMaxComb = kMaxStreams * kMaxStreams;

// Lane t holds token t's value of mix output `output`, scaled: mix * factor * scale + base.
LODESTONE_SIMD F32x16 ScaledMix(const HcMixArgs& args, int64_t output, float scale) {
  alignas(64) float mix[kLanes] = {};
  alignas(64) float factor[kLanes] = {};
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    mix[t] = args.mix[t * args.mix_stride + output];
    factor[t] = args.factor[t];
  }
  const F32x16 scaled = Mul(Mul(Load(mix), Load(factor)), Broadcast(scale));
  return Add(scaled, Broadcast(args.base[output]));
}

LODESTONE_SIMD void StoreLanes(F32x16 a, int64_t num_tokens, int64_t stride, float* out) {
  alignas(64) float lanes[kLanes];
  Store(lanes, a);
  for (int64_t t = 0; t < num_tokens; ++t) out[t * stride] = lanes[t];
}

// comb[i * step] for i < m, divided by their sum plus eps.
LODESTONE_SIMD void Normalise(F32x16* comb, int64_t m, int64_t step, F32x16 eps) {
  F32x16 sum = comb[0];
  for (int64_t i = 1; i < m; ++i) sum = Add(sum, comb[i * step]);
  sum = Add(sum, eps);
  for (int64_t i = 0; i < m; ++i) comb[i * step] = Div(comb[i * step], sum);
}

LODESTONE_SIMD void SoftmaxRow(F32x16* row, int64_t m, F32x16 eps) {
  F32x16 largest = row[0];
  for (int64_t i = 1; i < m; ++i) largest = Max(largest, row[i]);
  F32x16 sum = Zero();
  for (int64_t i = 0; i < m; ++i) {
    row[i] = Exp(Sub(row[i], largest));
    sum = Add(sum, row[i]);
  }
  for (int64_t i = 0; i < m; ++i) row[i] = Add(Div(row[i], sum), eps);
}

template <typename Streams>
LODESTONE_SIMD void Sinkhorn(F32x16* comb, Streams streams, int iters, F32x16 eps) {
  const int64_t m = streams;
  for (int64_t j = 0; j < m; ++j) SoftmaxRow(comb + j * m, m, eps);
  for (int64_t k = 0; k < m; ++k) Normalise(comb + k, m, m, eps);
  for (int i = 1; i < iters; ++i) {
    for (int64_t j = 0; j < m; ++j) Normalise(comb + j * m, m, 1, eps);
    for (int64_t k = 0; k < m; ++k) Normalise(comb + k, m, m, eps);
  }
}

struct FourStreams {
  constexpr operator int64_t() const { return 4; }
};

template <bool kBf16, typename Streams>
void HcPostOf(const void* x, const float* post, const float* comb, Streams num_streams, int64_t n,
              void* streams) {
  const int64_t m = num_streams;
  for (int64_t c = 0; c + kLanes <= n; c += kLanes) {
    const F32x16 value = LoadAct<kBf16>(x, c);
    F32x16 source[kMaxStreams];
#pragma GCC unroll 4
    for (int64_t j = 0; j < m; ++j) source[j] = LoadAct<kBf16>(streams, j * n + c);
#pragma GCC unroll 4
    for (int64_t k = 0; k < m; ++k) {
      F32x16 sum = Mul(Broadcast(post[k]), value);
#pragma GCC unroll 4
      for (int64_t j = 0; j < m; ++j) sum = Fma(Broadcast(comb[j * m + k]), source[j], sum);
      StoreAct<kBf16>(streams, k * n + c, sum);
    }
  }
}

template <bool kBf16>
void CollapseOf(const void* streams, const float* pre, int64_t m, int64_t n, void* out) {
  for (int64_t c = 0; c + kLanes <= n; c += kLanes) {
    F32x16 sum = Mul(Broadcast(pre[0]), LoadAct<kBf16>(streams, c));
    for (int64_t j = 1; j < m; ++j) {
      sum = Fma(Broadcast(pre[j]), LoadAct<kBf16>(streams, j * n + c), sum);
    }
    StoreAct<kBf16>(out, c, sum);
  }
}

}  // namespace

void HcMix(const HcMixArgs& args) {
  const int64_t m = args.num_streams;
  const F32x16 eps = Broadcast(args.eps);
  for (int64_t i = 0; i < m; ++i) {
    const F32x16 pre = Add(Sigmoid(ScaledMix(args, i, args.scale[0])), eps);
    StoreLanes(pre, args.num_tokens, m, args.pre + i);
  }
  if (args.post == nullptr) return;
  for (int64_t i = 0; i < m; ++i) {
    const F32x16 post = Mul(Broadcast(2.0f), Sigmoid(ScaledMix(args, m + i, args.scale[1])));
    StoreLanes(post, args.num_tokens, m, args.post + i);
  }
  F32x16 comb[kMaxComb];
  for (int64_t i = 0; i < m * m; ++i) comb[i] = ScaledMix(args, 2 * m + i, args.scale[2]);
  if (m == 4)
    Sinkhorn(comb, FourStreams(), args.sinkhorn_iters, eps);
  else
    Sinkhorn(comb, m, args.sinkhorn_iters, eps);
  for (int64_t i = 0; i < m * m; ++i) {
    StoreLanes(comb[i], args.num_tokens, m * m, args.comb + i);
  }
}

void HcPost(const void* x, const float* post, const float* comb, int64_t num_streams, int64_t n,
            bool bf16, void* streams) {
  if (num_streams == 4) {
    if (bf16)
      HcPostOf<true>(x, post, comb, FourStreams(), n, streams);
    else
      HcPostOf<false>(x, post, comb, FourStreams(), n, streams);
  } else {
    if (bf16)
      HcPostOf<true>(x, post, comb, num_streams, n, streams);
    else
      HcPostOf<false>(x, post, comb, num_streams, n, streams);
  }
}

void CollapseStreams(const void* streams, const float* pre, int64_t num_streams, int64_t n,
                     bool bf16, void* out) {
  if (bf16)
    CollapseOf<true>(streams, pre, num_streams, n, out);
  else
    CollapseOf<false>(streams, pre, num_streams, n, out);
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

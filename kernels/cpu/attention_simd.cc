#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

using cpu::AttendArgs;
using cpu::kHeadBlock;
using cpu::kKeyBlock;

#if defined(__AVX512F__)
constexpr int kScoreTile = 4;  // heads and keys of a register tile of dot products
constexpr int kValueTile = 4;  // vectors of dims of a register tile of weighted sums
#else
constexpr int kScoreTile = 2;
constexpr int kValueTile = 1;
#endif

// partial[h * 4 + k] = lane sums of q[h] * key[k] for kScoreTile heads and keys from (head, key).
template <bool kBf16>
LODESTONE_SIMD void DotTile(const AttendArgs& args, const void* const* keys, int head, int key,
                            F32x16* partial) {
  F32x16 acc[kScoreTile][kScoreTile];
#pragma GCC unroll 4
  for (int h = 0; h < kScoreTile; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < kScoreTile; ++k) acc[h][k] = Zero();
  }
  for (int64_t d = 0; d < args.dim; d += kLanes) {
    F32x16 value[kScoreTile];
#pragma GCC unroll 4
    for (int k = 0; k < kScoreTile; ++k) value[k] = LoadAct<kBf16>(keys[key + k], d);
#pragma GCC unroll 4
    for (int h = 0; h < kScoreTile; ++h) {
      const F32x16 q = Load(args.q + (head + h) * args.dim + d);
#pragma GCC unroll 4
      for (int k = 0; k < kScoreTile; ++k) acc[h][k] = Fma(q, value[k], acc[h][k]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kScoreTile; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < kScoreTile; ++k) {
      partial[(head + h) * kKeyBlock + key + k] = acc[h][k];
    }
  }
}

// probs[h][j] = (q[h] . key[j]) * scale for all keys; -inf from num_keys to the next multiple
// of 16.
template <bool kBf16>
LODESTONE_SIMD void ScoreKeys(const AttendArgs& args) {
  const float infinity = __builtin_inff();
  const int64_t padded = (args.num_keys + kLanes - 1) / kLanes * kLanes;
  for (int64_t j = 0; j < args.num_keys; j += kKeyBlock) {
    F32x16 partial[kHeadBlock * kKeyBlock];
#pragma GCC unroll 2
    for (int head = 0; head < kHeadBlock; head += kScoreTile) {
#pragma GCC unroll 2
      for (int key = 0; key < kKeyBlock; key += kScoreTile) {
        DotTile<kBf16>(args, args.keys + j, head, key, partial);
      }
    }
    alignas(64) float sums[kHeadBlock * kKeyBlock];
    Store(sums, Mul(ReduceAdd16(partial), Broadcast(args.scale)));
    for (int h = 0; h < kHeadBlock; ++h) {
      for (int k = 0; k < kKeyBlock; ++k) {
        args.probs[h * args.probs_stride + j + k] = sums[h * kKeyBlock + k];
      }
    }
  }
  for (int h = 0; h < kHeadBlock; ++h) {
    for (int64_t j = args.num_keys; j < padded; ++j)
      args.probs[h * args.probs_stride + j] = -infinity;
  }
}

// Turns one head's scores into probabilities rounded as the weighted sum needs them; returns the
// denominator, of unrounded ones and the sink.
template <bool kBf16>
LODESTONE_SIMD float SoftmaxHead(float* probs, int64_t num_keys, float sink) {
  F32x16 largest = Load(probs);
  for (int64_t j = kLanes; j < num_keys; j += kLanes) largest = Max(largest, Load(probs + j));
  const float max = ReduceMax(largest);
  F32x16 sum = Zero();
  for (int64_t j = 0; j < num_keys; j += kLanes) {
    const F32x16 p = Exp(Sub(Load(probs + j), Broadcast(max)));
    sum = Add(sum, p);
    Store(probs + j, RoundAct<kBf16>(p));
  }
  alignas(64) float sink_term[kLanes];
  Store(sink_term, Exp(Broadcast(sink - max)));
  return ReduceAdd(sum) + sink_term[0];
}

// Weighted sums of kVectors vectors of dims for kHeadBlock heads; lanes are dims, keys in order.
template <bool kBf16, int kVectors>
LODESTONE_SIMD void SumValues(const AttendArgs& args, int64_t dim, const float* denominator) {
  F32x16 acc[kHeadBlock][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeadBlock; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[h][v] = Zero();
  }
  for (int64_t j = 0; j < args.num_keys; ++j) {
    F32x16 value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = LoadAct<kBf16>(args.keys[j], dim + v * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < kHeadBlock; ++h) {
      const F32x16 p = Broadcast(args.probs[h * args.probs_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[h][v] = Fma(p, value[v], acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeadBlock; ++h) {
    if (h >= args.num_heads) break;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      StoreAct<kBf16>(args.out, h * args.dim + dim + v * kLanes,
                      Div(acc[h][v], Broadcast(denominator[h])));
    }
  }
}

template <bool kBf16>
void AttendOf(const AttendArgs& args) {
  ScoreKeys<kBf16>(args);
  float denominator[kHeadBlock];
  for (int64_t h = 0; h < kHeadBlock; ++h) {
    const float sink = h < args.num_heads ? args.sink[h] : 0.0f;
    denominator[h] = SoftmaxHead<kBf16>(args.probs + h * args.probs_stride, args.num_keys, sink);
  }
  int64_t dim = 0;
  for (; dim + kValueTile * kLanes <= args.dim; dim += kValueTile * kLanes) {
    SumValues<kBf16, kValueTile>(args, dim, denominator);
  }
  for (; dim < args.dim; dim += kLanes) SumValues<kBf16, 1>(args, dim, denominator);
}

}  // namespace

void Attend(const AttendArgs& args) {
  if (args.bf16)
    AttendOf<true>(args);
  else
    AttendOf<false>(args);
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

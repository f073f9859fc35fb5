#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

LODESTONE_SIMD F32x16 Score(const cpu::PoolArgs& args, int64_t token, int64_t channel) {
  const F32x16 score = Load(args.score[token] + channel);
  if (args.ape[token] == nullptr) return score;
  return Add(score, Load(args.ape[token] + channel));
}

}  // namespace

// Lanes are channels; both passes run in token order. A score of -inf weighs exactly nothing.
void Pool(const cpu::PoolArgs& args) {
  for (int64_t channel = 0; channel < args.num_channels; channel += kLanes) {
    F32x16 largest = Score(args, 0, channel);
    for (int64_t t = 1; t < args.count; ++t) largest = Max(largest, Score(args, t, channel));
    F32x16 sum = Zero();
    F32x16 weights = Zero();
    for (int64_t t = 0; t < args.count; ++t) {
      const F32x16 weight = Exp(Sub(Score(args, t, channel), largest));
      weights = Add(weights, weight);
      sum = Fma(weight, Load(args.kv[t] + channel), sum);
    }
    Store(args.out + channel, Div(sum, weights));
  }
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

#pragma once

#include <cstdint>

#include "kernels/cuda/device/hyper_connection.cuh"

// Sinkhorn's passes over a 4 x 4 matrix without a division on the way from one to the next.
namespace lodestone::cuda {

struct Sinkhorn {
  static constexpr int kSize = HcTile::kStreams;

  float a[kSize][kSize];
  float rows[kSize];     // what rows and columns were divided by in all, each up to a factor
  float columns[kSize];  // common to all four
  float off;             // 1 - off: one over the product of the two factors
  float eps_ratio;       // eps / (1 - off), within 2^-9 of it

  // Within 1/8 of one over x, of 2^-125 to 2^125: the exponent changes its sign.
  static __device__ float RoughInverse(float x) {
    return __uint_as_float(0x7ef311c7u - __float_as_uint(x));
  }

  // One pass: divides by the sums over what `from` belongs to. With q[k] = 1 / from[k] it would be
  //   to[j] = sum_k a(j, k) q[k] + eps to[j].
  // Instead q[k] is the product of the other three of `from`, made about 1 / from[k] by one rough
  // inverse of the product of all four; what that is off by is known and cancels. Only eps needs
  // one over it, for which the first terms of its series do.
  template <typename Element>
  __device__ void Divide(float eps, const float (&from)[kSize], float (&to)[kSize],
                         const Element& element) {
    const float low = from[0] * from[1];
    const float high = from[2] * from[3];
    const float all = low * high;
    const float inverse = RoughInverse(all);
    off = fmaf(-inverse, all, 1.0f);
    const float kept = inverse * (all * eps_ratio);
    const float low_part = low * inverse;
    const float high_part = high * inverse;
    const float q[kSize] = {from[1] * high_part, from[0] * high_part, from[3] * low_part,
                            from[2] * low_part};
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      to[j] *= kept;
#pragma unroll
      for (int k = 0; k < kSize; ++k) to[j] = fmaf(element(j, k), q[k], to[j]);
    }
    eps_ratio = fmaf(eps, fmaf(off, off, off), eps);
  }

  // comb nearly doubly stochastic (spec 6.1), by a warp: lane i < 16 has element i of the scaled
  // mixes and gets element i of comb. Row softmax, eps added after the division; then passes over
  // columns, rows, ..., columns, each dividing by its sums plus eps. Every lane does all of it.
  __device__ float Run(float mix, float eps, int iters) {
    const auto over_row = [](float value, const auto& combine) {
      value = combine(value, __shfl_xor_sync(~0u, value, 1));
      return combine(value, __shfl_xor_sync(~0u, value, 2));
    };
    const float largest = over_row(mix, [](float x, float y) { return fmaxf(x, y); });
    const float weight = expf(mix - largest);
    const float own =
        fmaf(weight, Reciprocal(over_row(weight, [](float x, float y) { return x + y; })), eps);
#pragma unroll
    for (int i = 0; i < kSize * kSize; ++i) a[i / kSize][i % kSize] = __shfl_sync(~0u, own, i);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      rows[k] = 1.0f;
      columns[k] = ((a[0][k] + a[1][k]) + (a[2][k] + a[3][k])) + eps;
    }
    off = 0.0f;
    eps_ratio = eps;
#pragma unroll 1
    for (int iter = 1; iter < iters; ++iter) {
      Divide(eps, columns, rows, [&](int j, int k) { return a[j][k]; });
      Divide(eps, rows, columns, [&](int j, int k) { return a[k][j]; });
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto choose = [](const float(&of)[kSize], int i) {
      return i < 2 ? (i == 0 ? of[0] : of[1]) : (i == 2 ? of[2] : of[3]);
    };
    const float divisor = choose(rows, lane / kSize % kSize) * choose(columns, lane % kSize);
    return own * (1.0f - off) * Reciprocal(divisor);
  }
};

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "runtime/cache_format.h"

// Steps on one row of floats in shared memory, done by a team of threads: a warp (kTeam 32) or a
// whole thread block of kTeam threads. The arithmetic is that of kernels/numeric/ and of the
// reference ops, with sums in fp32. Every function leaves the row complete for all of the team.
namespace lodestone::cuda {

template <int kTeam>
__device__ int TeamRank() {
  return static_cast<int>(threadIdx.x) % kTeam;
}

template <int kTeam>
__device__ void TeamSync() {
  if constexpr (kTeam == 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

__device__ inline float WarpSum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

__device__ inline float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// The same order of additions whatever else the block does.
template <int kTeam>
__device__ float TeamSum(float value) {
  value = WarpSum(value);
  if constexpr (kTeam > 32) {
    __shared__ float partial[kTeam / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (int warp = 1; warp < kTeam / 32; ++warp) value += partial[warp];
  }
  return value;
}

__device__ inline float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

template <int kTeam>
__device__ void LoadRow(const uint16_t* from, int n, float* row) {
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) row[i] = Bf16ToFloat(from[i]);
  TeamSync<kTeam>();
}

template <int kTeam>
__device__ void StoreRow(const float* row, int n, uint16_t* to) {
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) to[i] = FloatToBf16(row[i]);
}

// round(weight * x * rsqrt(mean(x^2) + eps)). Spec 7.1.
template <int kTeam>
__device__ void RmsNormRow(float* row, int n, const uint16_t* weight, float eps) {
  float sum = 0;
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) sum = fmaf(row[i], row[i], sum);
  sum = TeamSum<kTeam>(sum);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) {
    row[i] = RoundToBf16(Bf16ToFloat(weight[i]) * (row[i] * factor));
  }
  TeamSync<kTeam>();
}

// Of the angle position * freq, rounded to fp32 first. Spec 7.2. In fp64, so that the rounded
// values are those of the host's cosf and sinf.
__device__ inline void SineAndCosine(int32_t position, float freq, float* sine, float* cosine) {
  double exact_sine, exact_cosine;
  sincos(static_cast<double>(__fmul_rn(static_cast<float>(position), freq)), &exact_sine,
         &exact_cosine);
  *sine = static_cast<float>(exact_sine);
  *cosine = static_cast<float>(exact_cosine);
}

// Rotates a pair and rounds. Spec 7.3.
__device__ inline void RotatePair(float sine, float cosine, float& re, float& im) {
  const float old_re = re;
  re = RoundToBf16(__fsub_rn(__fmul_rn(re, cosine), __fmul_rn(im, sine)));
  im = RoundToBf16(__fadd_rn(__fmul_rn(old_re, sine), __fmul_rn(im, cosine)));
}

// Rotates the last 2 * num_pairs of n dims by the angle of `position`, and rounds.
template <int kTeam>
__device__ void RotateTail(float* row, int n, int num_pairs, int32_t position, const float* freqs) {
  float* const tail = row + n - 2 * num_pairs;
  for (int i = TeamRank<kTeam>(); i < num_pairs; i += kTeam) {
    float sine, cosine;
    SineAndCosine(position, freqs[i], &sine, &cosine);
    RotatePair(sine, cosine, tail[2 * i], tail[2 * i + 1]);
  }
  TeamSync<kTeam>();
}

// The E8M0 byte of the smallest power of two >= a. REQUIRES: a is a positive normal number.
__device__ inline uint32_t Pow2CeilE8m0(float a) {
  const uint32_t bits = __float_as_uint(a);
  return (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}
__device__ inline uint32_t Fp8GroupScale(float amax) {
  constexpr float kReciprocal = 1.0f / 448.0f;
  return Pow2CeilE8m0(__fmul_rn(fmaxf(amax, 1e-4f), kReciprocal));
}
// The fp32 scale of a whole row.
__device__ inline float Fp8RowScale(float amax) { return __fdiv_rn(fmaxf(amax, 1e-4f), 448.0f); }
__device__ inline uint32_t Fp4GroupScale(float amax) {
  constexpr float kFloor = 6.0f * 0x1p-126f;
  constexpr float kReciprocal = 1.0f / 6.0f;
  return Pow2CeilE8m0(__fmul_rn(fmaxf(amax, kFloor), kReciprocal));
}

__device__ inline uint8_t FloatToE4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// Clamp to [-6, 6], then nearest, ties to the even code; NaN becomes 6.
__device__ inline uint32_t FloatToE2m1(float x) {
  const float a = fabsf(x);
  uint32_t code = 7;
  if (a <= 0.25f) {
    code = 0;
  } else if (a < 0.75f) {
    code = 1;
  } else if (a <= 1.25f) {
    code = 2;
  } else if (a < 1.75f) {
    code = 3;
  } else if (a <= 2.5f) {
    code = 4;
  } else if (a < 3.5f) {
    code = 5;
  } else if (a <= 5.0f) {
    code = 6;
  }
  return (__float_as_uint(x) >> 31 << 3) | code;
}
__device__ inline float E2m1ToFloat(uint32_t code) {
  const float magnitude =
      (code & 7) < 2 ? 0.5f * static_cast<float>(code & 7)
                     : __uint_as_float((((code >> 1) & 3) + 126) << 23 | (code & 1) << 22);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// Q8 of groups of kFp8KvGroup in row[0, n): calls store(i, code, scale byte) for every element.
template <int kTeam, typename Store>
__device__ void QuantizeFp8Groups(const float* row, int n, const Store& store) {
  const int lane = TeamRank<kTeam>() % 32;
  for (int group = TeamRank<kTeam>() / 32; group * kFp8KvGroup < n; group += kTeam / 32) {
    const int at = group * kFp8KvGroup + 2 * lane;
    const float2 pair = {row[at], row[at + 1]};
    const uint32_t scale_code = Fp8GroupScale(WarpMax(fmaxf(fabsf(pair.x), fabsf(pair.y))));
    const float scale = E8m0ToFloat(scale_code);
    store(at, FloatToE4m3(__fdiv_rn(pair.x, scale)), scale_code);
    store(at + 1, FloatToE4m3(__fdiv_rn(pair.y, scale)), scale_code);
  }
}

// QDQ8 in place. Spec 4.3.
template <int kTeam>
__device__ void RoundFp8Groups(float* row, int n) {
  QuantizeFp8Groups<kTeam>(row, n, [row](int i, uint8_t code, uint32_t scale) {
    row[i] = E4m3ToFloat(code) * E8m0ToFloat(scale);
  });
  TeamSync<kTeam>();
}

// Q4 of groups of kFp4Group: store(i, code, scale byte).
template <int kTeam, typename Store>
__device__ void QuantizeFp4Groups(const float* row, int n, const Store& store) {
  const int lane = TeamRank<kTeam>() % 32;
  for (int group = TeamRank<kTeam>() / 32; group * kFp4Group < n; group += kTeam / 32) {
    const int at = group * kFp4Group + lane;
    const float value = row[at];
    const uint32_t scale_code = Fp4GroupScale(WarpMax(fabsf(value)));
    store(at, FloatToE2m1(__fdiv_rn(value, E8m0ToFloat(scale_code))), scale_code);
  }
}

// QDQ4 in place.
template <int kTeam>
__device__ void RoundFp4Groups(float* row, int n) {
  QuantizeFp4Groups<kTeam>(row, n, [row](int i, uint32_t code, uint32_t scale) {
    row[i] = E2m1ToFloat(code) * E8m0ToFloat(scale);
  });
  TeamSync<kTeam>();
}

// One Fp8RowScale for a whole row of n: store(i, code). Returns the scale.
template <int kTeam, typename Store>
__device__ float QuantizeFp8Row(const float* row, int n, const Store& store) {
  float amax = 0;
  for (int i = 0; i < n; i += 32) {  // every warp looks at the whole row
    const int at = i + static_cast<int>(threadIdx.x) % 32;
    if (at < n) amax = fmaxf(amax, fabsf(row[at]));
  }
  const float scale = Fp8RowScale(WarpMax(amax));
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) {
    store(i, FloatToE4m3(__fdiv_rn(row[i], scale)));
  }
  return scale;
}

// Sylvester Walsh-Hadamard transform times n^-1/2, the operations in the order of
// kernels/numeric/hadamard.h: the same bits.
template <int kTeam>
__device__ void HadamardRow(float* row, int n, float factor) {
  for (int h = 1; h < n; h *= 2) {
    for (int pair = TeamRank<kTeam>(); pair < n / 2; pair += kTeam) {
      const int i = pair / h * 2 * h + pair % h;
      const float a = row[i];
      const float b = row[i + h];
      row[i] = a + b;
      row[i + h] = a - b;
    }
    TeamSync<kTeam>();
  }
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) row[i] *= factor;
  TeamSync<kTeam>();
}

template <int kTeam>
__device__ void RoundRow(float* row, int n) {
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) row[i] = RoundToBf16(row[i]);
  TeamSync<kTeam>();
}

// A latent into its cache row (EncodeLatentRow of kernels/numeric/row_codec.h).
template <int kTeam>
__device__ void StoreLatentRow(KvFormat format, const float* row, int n, int rope_dims,
                               uint8_t* payload, uint8_t* scale) {
  if (format == KvFormat::kBf16) {
    StoreRow<kTeam>(row, n, reinterpret_cast<uint16_t*>(payload));
    return;
  }
  const int coded = n - rope_dims;
  QuantizeFp8Groups<kTeam>(row, coded, [=](int i, uint8_t code, uint32_t scale_code) {
    payload[i] = code;
    if (i % kFp8KvGroup == 0) scale[i / kFp8KvGroup] = static_cast<uint8_t>(scale_code);
  });
  const int used = coded / kFp8KvGroup;
  const int padded = (used + 7) / 8 * 8;
  for (int i = used + TeamRank<kTeam>(); i < padded; i += kTeam) scale[i] = 0;
  StoreRow<kTeam>(row + coded, rope_dims, reinterpret_cast<uint16_t*>(payload + coded));
}

// An index key into its cache row (EncodeIndexKeyRow). The row is used up.
template <int kTeam>
__device__ void StoreIndexKeyRow(IndexKeyFormat format, float* row, int n, uint8_t* payload,
                                 uint8_t* scale) {
  switch (format) {
    case IndexKeyFormat::kFp8: {
      const float row_scale =
          QuantizeFp8Row<kTeam>(row, n, [=](int i, uint8_t code) { payload[i] = code; });
      if (TeamRank<kTeam>() == 0) *reinterpret_cast<float*>(scale) = row_scale;
      return;
    }
    case IndexKeyFormat::kFp4:
      QuantizeFp4Groups<kTeam>(row, n, [=](int i, uint32_t code, uint32_t scale_code) {
        const uint32_t next = __shfl_down_sync(~0u, code, 1);
        if (i % 2 == 0) payload[i / 2] = static_cast<uint8_t>(code | next << 4);
        if (i % kFp4Group == 0) scale[i / kFp4Group] = static_cast<uint8_t>(scale_code);
      });
      return;
    default:
      StoreRow<kTeam>(row, n, reinterpret_cast<uint16_t*>(payload));
  }
}

}  // namespace lodestone::cuda

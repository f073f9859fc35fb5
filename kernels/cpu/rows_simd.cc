#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

// Element-wise work and norms of one row. A tail of fewer than 16 elements goes through a padded
// copy, so rows may have any length.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

template <bool kBf16>
LODESTONE_SIMD F32x16 LoadRow(const void* row, int64_t i, int64_t n) {
  if (i + kLanes <= n) return LoadAct<kBf16>(row, i);
  if constexpr (kBf16)
    return LoadBf16Part(static_cast<const uint16_t*>(row) + i, n - i);
  else
    return LoadPart(static_cast<const float*>(row) + i, n - i);
}

template <bool kBf16>
LODESTONE_SIMD void StoreRow(void* row, int64_t i, int64_t n, F32x16 a) {
  if (i + kLanes <= n) {
    StoreAct<kBf16>(row, i, a);
  } else if constexpr (kBf16) {
    StoreBf16Part(static_cast<uint16_t*>(row) + i, a, n - i);
  } else {
    StorePart(static_cast<float*>(row) + i, a, n - i);
  }
}

// The sum over a row of value(i) (16 lanes from element i), in four chains and one tree.
template <typename Square>
LODESTONE_SIMD float SumOfSquares(int64_t n, Square value) {
  F32x16 acc[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32x16 a = value(i + j * kLanes);
      acc[j] = Fma(a, a, acc[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const F32x16 a = value(i);
    acc[0] = Fma(a, a, acc[0]);
  }
  return ReduceAdd(Add(Add(acc[0], acc[1]), Add(acc[2], acc[3])));
}

template <bool kBf16>
float SumSquaresOf(const void* x, int64_t n) {
  return SumOfSquares(n, [&](int64_t i) { return LoadRow<kBf16>(x, i, n); });
}

float ReciprocalSqrt(float x) { return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

template <bool kBf16>
void RmsNormOf(const void* x, const uint16_t* weight, float eps, int64_t n, void* out) {
  const float mean = SumSquaresOf<kBf16>(x, n) / static_cast<float>(n);
  const F32x16 factor = Broadcast(ReciprocalSqrt(mean + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 scaled = Mul(LoadRow<kBf16>(x, i, n), factor);
    StoreRow<kBf16>(out, i, n, Mul(LoadRow<true>(weight, i, n), scaled));
  }
}

template <bool kBf16>
LODESTONE_SIMD float RoundScalar(float x) {
  alignas(64) float lanes[kLanes];
  Store(lanes, RoundAct<kBf16>(Broadcast(x)));
  return lanes[0];
}

template <bool kBf16>
void QueryNormOf(void* x, float eps, int64_t n) {
  F32x16 acc[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 a = LoadRow<kBf16>(x, i, n);
    const int chain = static_cast<int>(i / kLanes % 4);
    acc[chain] = Add(acc[chain], RoundAct<kBf16>(Mul(a, a)));
  }
  const float sum = ReduceAdd(Add(Add(acc[0], acc[1]), Add(acc[2], acc[3])));
  const float mean = RoundScalar<kBf16>(sum / static_cast<float>(n));
  const F32x16 factor =
      Broadcast(RoundScalar<kBf16>(ReciprocalSqrt(RoundScalar<kBf16>(mean + eps))));
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreRow<kBf16>(x, i, n, Mul(LoadRow<kBf16>(x, i, n), factor));
  }
}

// Products are rounded before they are added, as in kernels/numeric/rope.h.
template <bool kBf16>
void RotateOf(void* x, const float* cos, const float* sin, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 a = LoadRow<kBf16>(x, i, n);
    const F32x16 turned = Mul(SwapLanes<1>(a), LoadRow<false>(sin, i, n));
    StoreRow<kBf16>(x, i, n, Add(Mul(a, LoadRow<false>(cos, i, n)), turned));
  }
}

// One stage within a register: (a, b) at distance kDistance becomes (a + b, a - b).
template <int kDistance>
LODESTONE_SIMD F32x16 HadamardStage(F32x16 a) {
  const I32x16 upper = And(LaneIndex(), BroadcastInt(kDistance));
  // The sign bit where the lane is the upper of its pair.
  constexpr int kShift = kDistance == 1 ? 31 : kDistance == 2 ? 30 : kDistance == 4 ? 29 : 28;
  const I32x16 sign = ShiftLeft<kShift>(upper);
  return Add(SwapLanes<kDistance>(a), FromBits(Xor(Bits(a), sign)));
}

constexpr int64_t kMaxHadamard = 1024;

template <bool kBf16>
void HadamardOf(void* x, int64_t n, float factor) {
  alignas(64) float row[kMaxHadamard];
  for (int64_t i = 0; i < n; i += kLanes) {
    F32x16 a = HadamardStage<1>(LoadAct<kBf16>(x, i));
    a = HadamardStage<2>(a);
    a = HadamardStage<4>(a);
    Store(row + i, HadamardStage<8>(a));
  }
  for (int64_t h = kLanes; h < n; h *= 2) {
    for (int64_t first = 0; first < n; first += 2 * h) {
      for (int64_t i = first; i < first + h; i += kLanes) {
        const F32x16 a = Load(row + i);
        const F32x16 b = Load(row + i + h);
        Store(row + i, Add(a, b));
        Store(row + i + h, Sub(a, b));
      }
    }
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreAct<kBf16>(x, i, Mul(Load(row + i), Broadcast(factor)));
  }
}

template <bool kBf16>
void SwigluOf(const float* gate, const float* up, float limit, float weight, int64_t n, void* out) {
  const F32x16 high = Broadcast(limit);
  const F32x16 low = Broadcast(-limit);
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 g = Min(high, RoundAct<kBf16>(LoadRow<false>(gate, i, n)));
    const F32x16 u = Max(low, Min(high, RoundAct<kBf16>(LoadRow<false>(up, i, n))));
    StoreRow<kBf16>(out, i, n, Mul(Mul(Silu(g), u), Broadcast(weight)));
  }
}

template <bool kBf16>
void AddRowsOf(const void* const* rows, int64_t num_rows, int64_t n, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    F32x16 sum = LoadRow<kBf16>(rows[0], i, n);
    for (int64_t r = 1; r < num_rows; ++r) sum = Add(sum, LoadRow<kBf16>(rows[r], i, n));
    StoreRow<kBf16>(out, i, n, sum);
  }
}

}  // namespace

void Widen(const void* x, bool bf16, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreRow<false>(out, i, n, bf16 ? LoadRow<true>(x, i, n) : LoadRow<false>(x, i, n));
  }
}

void Narrow(const float* x, int64_t n, bool bf16, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 a = LoadRow<false>(x, i, n);
    if (bf16)
      StoreRow<true>(out, i, n, a);
    else
      StoreRow<false>(out, i, n, a);
  }
}

float SumSquares(const void* x, bool bf16, int64_t n) {
  return bf16 ? SumSquaresOf<true>(x, n) : SumSquaresOf<false>(x, n);
}

void RmsNorm(const void* x, const uint16_t* weight, float eps, int64_t n, bool bf16, void* out) {
  if (bf16)
    RmsNormOf<true>(x, weight, eps, n, out);
  else
    RmsNormOf<false>(x, weight, eps, n, out);
}

void QueryNorm(void* x, float eps, int64_t n, bool bf16) {
  if (bf16)
    QueryNormOf<true>(x, eps, n);
  else
    QueryNormOf<false>(x, eps, n);
}

void Rotate(void* x, const float* cos, const float* sin, int64_t n, bool bf16) {
  if (bf16)
    RotateOf<true>(x, cos, sin, n);
  else
    RotateOf<false>(x, cos, sin, n);
}

void Hadamard(void* x, int64_t n, float factor, bool bf16) {
  if (bf16)
    HadamardOf<true>(x, n, factor);
  else
    HadamardOf<false>(x, n, factor);
}

void Swiglu(const float* gate, const float* up, float limit, float weight, int64_t n, bool bf16,
            void* out) {
  if (bf16)
    SwigluOf<true>(gate, up, limit, weight, n, out);
  else
    SwigluOf<false>(gate, up, limit, weight, n, out);
}

void AddRows(const void* const* rows, int64_t num_rows, int64_t n, bool bf16, void* out) {
  if (bf16)
    AddRowsOf<true>(rows, num_rows, n, out);
  else
    AddRowsOf<false>(rows, num_rows, n, out);
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

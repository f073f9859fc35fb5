#include <cstdint>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/simd_functions.h"
#include "kernels/numeric/fp8.h"

// Matrix products with FP8 and FP4 weights (docs/model.md 4.4): codes are widened exactly, on the
// way into the registers where rows are few, else once for all rows; the scale of each output meets
// the sum of its slice at the end. The scale of a row of x is folded into its values: powers of two
// change no rounding. Functions of runtime/weight_format.h occur in constant expressions only, so
// that none is emitted here (simd_base.h).
namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

// Sixteen codes are one load; what they are worth is off by a power of two, which Factor makes
// good.
struct Fp8Code {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr int64_t kInputBytes = kPanelOutputs;
  static constexpr float kFactor = 0x1p8f;  // LoadE4m3 gives the value * 2^-8
  uint8_t byte;
};
struct Fp4Code {
  static constexpr WeightFormat kFormat = WeightFormat::kFp4;
  static constexpr int64_t kInputBytes = kPanelOutputs / 2;
  static constexpr float kFactor = 0.5f;  // LoadE2m1 gives twice the value
  uint8_t byte;
};

LODESTONE_SIMD F32x16 LoadWeights(const Fp8Code* panel, int64_t k, int64_t half) {
  return LoadE4m3(&panel->byte + k * Fp8Code::kInputBytes + half * kLanes);
}
LODESTONE_SIMD F32x16 LoadWeights(const Fp4Code* panel, int64_t k, int64_t half) {
  return LoadE2m1(&panel->byte + k * Fp4Code::kInputBytes, half);
}

// Nearest e4m3 value, ties to even; NaN stays NaN. The sum with 1.5 * 2^(e + 20) has its last place
// where e4m3 has it, so the addition rounds.
LODESTONE_SIMD F32x16 RoundE4m3(F32x16 a) {
  const F32x16 x = Max(Broadcast(-kE4m3Max), Min(Broadcast(kE4m3Max), a));
  const F32x16 power = FromBits(And(Bits(x), BroadcastInt(0x7f800000)));
  const F32x16 anchor = Mul(Max(power, Broadcast(0x1p-6f)), Broadcast(0x1.8p20f));
  return Sub(Add(x, anchor), anchor);
}

// Q8 of a widened row, groups of 128; lanes beyond `n` are zeros. The codes times their scale.
LODESTONE_SIMD void RoundRow(float* x, int64_t n) {
  for (int64_t group = 0; group < n; group += kQuantisedGroup) {
    const int64_t end = Least(group + kQuantisedGroup, n);
    F32x16 largest = Zero();
    for (int64_t i = group; i < end; i += kLanes) {
      largest = Max(FromBits(And(Bits(Load(x + i)), BroadcastInt(0x7fffffff))), largest);
    }
    const float scale = E8m0ToFloat(Fp8GroupScale(ReduceMax(largest)));
    for (int64_t i = group; i < end; i += kLanes) {
      const F32x16 code = RoundE4m3(Mul(Load(x + i), Broadcast(1.0f / scale)));
      Store(x + i, Mul(code, Broadcast(scale)));
    }
  }
}

struct QuantisedScratch : GemmScratch {
  alignas(64) float scales[kPanelChunk * kPanelOutputs];
};

// One slice of a chunk of rows and panels. `w` is the slice of the first panel: its scales, then
// its codes. With more rows than one tile has, codes are widened once for all of them.
template <typename W>
void AddSlice(const float* x, int64_t num_rows, const W* w, int64_t panel_stride,
              int64_t num_panels, int64_t num_k, bool first, QuantisedScratch& scratch) {
  for (int64_t v = 0; v < num_panels * 2; ++v) {
    const uint8_t* scales = &w->byte + v / 2 * panel_stride + v % 2 * kLanes;
    Store(scratch.scales + v * kLanes, Mul(LoadE8m0(scales), Broadcast(W::kFactor)));
  }
  const W* codes = w + kPanelOutputs;
  if (num_rows <= kMaxTileRows) {
    AllRows<true>(x, num_rows, codes, panel_stride, num_k, first, num_panels * 2, scratch.scales,
                  scratch.sums);
    return;
  }
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    for (int64_t i = 0; i < num_k * 2; ++i) {
      Store(scratch.weights + i * kLanes, LoadWeights(codes + panel * panel_stride, i / 2, i % 2));
    }
    const float* weights = scratch.weights;
    AllRows<true>(x, num_rows, weights, 0, num_k, first, 2, scratch.scales + panel * kPanelOutputs,
                  scratch.sums + panel * kPanelOutputs);
  }
}

template <typename W>
void RunQuantised(const GemmArgs& args) {
  constexpr int64_t kSlice = ScaledInputs(W::kFormat);
  constexpr int64_t kSliceBytes = cpu::PanelSliceBytes(W::kFormat);
  static_assert(kBlockK % kSlice == 0 && kBlockK % kQuantisedGroup == 0);
  const int64_t panel_stride = (args.k + kSlice - 1) / kSlice * kSliceBytes;
  QuantisedScratch scratch;
  RunChunks(args, scratch,
            [&](int64_t rows, int64_t panel, int64_t panels, int64_t k, int64_t num_k) {
              for (int64_t r = 0; args.round_x && r < rows; ++r) {
                RoundRow(scratch.x + r * kXStride, num_k);
              }
              for (int64_t i = 0; i < num_k; i += kSlice) {
                const W* w = static_cast<const W*>(args.panels) + panel * panel_stride +
                             (k + i) / kSlice * kSliceBytes;
                AddSlice(scratch.x + i, rows, w, panel_stride, panels, Least(kSlice, num_k - i),
                         k + i == 0, scratch);
              }
            });
}

}  // namespace

void GemmQuantised(const GemmArgs& args) {
  if (args.format == WeightFormat::kFp8)
    RunQuantised<Fp8Code>(args);
  else
    RunQuantised<Fp4Code>(args);
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

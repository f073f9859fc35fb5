#include <cstdint>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/simd_functions.h"

// Matrix products with bf16 and fp32 weights.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

// Terms [first_k, first_k + num_k) of a chunk of rows and panels. With more rows than one tile has,
// bf16 weights are widened once for all of them.
template <typename W>
void AddTerms(const GemmArgs& args, int64_t num_rows, int64_t first_panel, int64_t num_panels,
              int64_t first_k, int64_t num_k, GemmScratch& scratch) {
  const int64_t panel_stride = args.k * kPanelOutputs;
  const W* w =
      static_cast<const W*>(args.panels) + first_panel * panel_stride + first_k * kPanelOutputs;
  const bool first = first_k == 0;
  if (sizeof(W) == 4 || num_rows <= kMaxTileRows) {
    AllRows<false>(scratch.x, num_rows, w, panel_stride, num_k, first, num_panels * 2, nullptr,
                   scratch.sums);
    return;
  }
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    const W* source = w + panel * panel_stride;
    for (int64_t i = 0; i < num_k * 2; ++i) {
      Store(scratch.weights + i * kLanes, LoadWeights(source, i / 2, i % 2));
    }
    const float* weights = scratch.weights;
    AllRows<false>(scratch.x, num_rows, weights, 0, num_k, first, 2, nullptr,
                   scratch.sums + panel * kPanelOutputs);
  }
}

}  // namespace

void Gemm(const GemmArgs& args) {
  GemmScratch scratch;
  RunChunks(args, scratch,
            [&](int64_t rows, int64_t panel, int64_t panels, int64_t k, int64_t num_k) {
              if (args.format == WeightFormat::kBf16)
                AddTerms<uint16_t>(args, rows, panel, panels, k, num_k, scratch);
              else
                AddTerms<float>(args, rows, panel, panels, k, num_k, scratch);
            });
}

float FmaLoop(int64_t iterations) {
#if defined(__AVX512F__)
  constexpr int kChains = 16;
#else
  constexpr int kChains = 6;  // more would not stay in registers
#endif
  F32x16 acc[kChains];
  const F32x16 a = Broadcast(0.999f);
  const F32x16 b = Broadcast(0.001f);
  alignas(64) float start[kLanes];  // all different: equal halves would be computed once
  for (int i = 0; i < kLanes; ++i) start[i] = static_cast<float>(iterations % 100 * i);
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) acc[i] = Add(Load(start), Broadcast(static_cast<float>(i)));
  for (int64_t n = 0; n < iterations * 16 / kChains; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = Fma(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = Add(acc[0], acc[i]);
  return ReduceAdd(acc[0]);
}

float ReadLoop(const float* data, int64_t n) {
  F32x16 acc[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t i = 0; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[j] = Add(acc[j], Load(data + i + j * kLanes));
  }
  return ReduceAdd(Add(Add(acc[0], acc[1]), Add(acc[2], acc[3])));
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd_table.h"
#include "runtime/tensor.h"

namespace lodestone::cpu {

// Arguments for rows of `x` [T, >= k] times group `group` of `weight`, without `out`. `round_fp8`
// as in LinearParams.
GemmArgs GemmOf(const TensorView& x, const PackedWeight& weight, int64_t group,
                bool round_fp8 = false);
// Runs it, by the function for its weights.
void RunGemm(const SimdTable& simd, const GemmArgs& args);
// The same product for outputs from `first_panel` on: the weights only, not `out`.
void SkipPanels(int64_t first_panel, GemmArgs* args);

// A rough time of one product on one thread, for choosing a split.
int64_t GemmNs(int64_t rows, int64_t n, int64_t k, WeightFormat format);

}  // namespace lodestone::cpu

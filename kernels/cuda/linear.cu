// Linear (LinearParams) over the products of gemm.h.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"

namespace lodestone::cuda {

int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) {
  return round_fp8 ? num_tokens * k * static_cast<int64_t>(sizeof(uint16_t)) : 0;
}

bool RoundsInputs(const LinearParams& p) {
  return p.round_fp8 && p.weight.rounds_inputs && IsQuantised(p.weight.format);
}

void LaunchLinear(const LinearParams& p, cudaStream_t stream) {
  RequireArgument(p.weight.format != WeightFormat::kF32, "LaunchLinear",
                  "fp32 weights are for the mixing of streams only", p.weight.n);
  const bool round = RoundsInputs(p);
  RequireArgument(!(round && p.weight.groups > 1), "LaunchLinear",
                  "a grouped product rounds its inputs", p.weight.groups);
  const uint16_t* x = p.x.as<uint16_t>();
  int64_t x_stride = p.x.strides[0];
  if (round) {
    auto* const rounded = p.scratch.as<uint16_t>();
    LaunchRoundInputs(x, x_stride, p.x.shape[0], p.weight.k, rounded, stream);
    x = rounded;
    x_stride = p.weight.k;
  }
  LaunchGemm({.x = x,
              .x_stride = x_stride,
              .rows = p.x.shape[0],
              .weight = {GemmWeightOf(p.weight)},
              .format = p.weight.format,
              .parts = static_cast<int>(p.weight.groups),
              .grouped = p.weight.groups > 1,
              .n = p.weight.n,
              .k = p.weight.k,
              .out = p.out.data,
              .out_stride = p.out.strides[0],
              .out_f32 = p.out.dtype == DType::kF32},
             stream);
}

}  // namespace lodestone::cuda

// Linear (LinearParams) over the products of gemm.h.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"

namespace lodestone::cuda {

void LaunchLinear(const LinearParams& p, cudaStream_t stream) {
  RequireArgument(p.weight.format != WeightFormat::kF32, "LaunchLinear",
                  "fp32 weights are for the mixing of streams only", p.weight.n);
  LaunchGemm({.x = p.x.as<uint16_t>(),
              .x_stride = p.x.strides[0],
              .rows = p.x.shape[0],
              .weight = {GemmWeightOf(p.weight)},
              .format = p.weight.format,
              .parts = static_cast<int>(p.weight.groups),
              .grouped = p.weight.groups > 1,
              .n = p.weight.n,
              .k = p.weight.k,
              .round_fp8 = p.round_fp8 && p.weight.rounds_inputs && IsQuantised(p.weight.format),
              .out = p.out.data,
              .out_stride = p.out.strides[0],
              .out_f32 = p.out.dtype == DType::kF32},
             stream);
}

}  // namespace lodestone::cuda

// Products on the tensor cores (gemm.h), in three forms that add in the same order and so give the
// same bits.
//
// Up to 64 rows (a decode step, a few tokens per expert): NarrowTile, one block per 8 to 32
// outputs, weights streamed once from global memory; mma.sync; bound by their bytes. More rows, and
// from 33 on where weights are many: WarpgroupTile (device/gemm_warpgroup.cuh), wgmma, which is for
// sm_90a. On other cards, and where inputs are no multiple of 64: WideTile, 128 x 128 outputs a
// block, mma.sync; bound by the tensor cores.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm.h"

namespace lodestone::cuda {

template <WeightFormat kFormat>
void LaunchGemmOf(const GemmArgs& args, cudaStream_t stream);  // device/gemm_launch.cuh

void LaunchGemm(const GemmArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  RequireArgument(args.k % 8 == 0 && args.x_stride % 8 == 0, "LaunchGemm",
                  "inputs are not a multiple of 8", args.k);
  switch (args.format) {
    case WeightFormat::kBf16: return LaunchGemmOf<WeightFormat::kBf16>(args, stream);
    case WeightFormat::kFp8: return LaunchGemmOf<WeightFormat::kFp8>(args, stream);
    case WeightFormat::kFp4: return LaunchGemmOf<WeightFormat::kFp4>(args, stream);
    case WeightFormat::kF32: break;
  }
  RequireArgument(false, "LaunchGemm", "products with fp32 weights are for streams only", args.n);
}

}  // namespace lodestone::cuda

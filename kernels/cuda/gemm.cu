// Products on the tensor cores (gemm.h), in four forms that add in the same order and so give the
// same bits.
//
// Up to 64 rows (a decode step, a few tokens per expert): NarrowTile, one block per 8 to 32
// outputs, weights streamed once from global memory; mma.sync; bound by their bytes. More rows, and
// from 33 on where weights are many: WarpgroupTile (device/gemm_warpgroup.cuh), wgmma, which is for
// sm_90a; from 128 on, but for experts and where there is scratch for ordered inputs, ManyTile
// (device/gemm_many.cuh), with weights and inputs by the copy engine. On other cards, and where
// inputs are no multiple of 64: WideTile, 128 x 128 outputs a block, mma.sync; bound by the tensor
// cores.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm.h"

namespace lodestone::cuda {

template <WeightFormat kFormat>
void LaunchGemmOf(const GemmArgs& args, cudaStream_t stream);  // device/gemm_launch.cuh

// Whether the tile for many rows (device/gemm_many.cuh) can make the product.
static bool HasManyTile(const GemmArgs& args) {
  return CurrentDevice().sm90 && args.k % 64 == 0 && args.tiles == nullptr &&
         reinterpret_cast<uintptr_t>(args.weight[0].values) % 16 == 0 &&
         (args.parts == 1 || args.grouped);
}

bool TakesOrderedInputs(const GemmArgs& args) {
  return args.rows >= kMinOrderedRows && HasManyTile(args);
}

void LaunchGemm(const GemmArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  RequireArgument(args.k % 8 == 0 && args.x_stride % 8 == 0, "LaunchGemm",
                  "inputs are not a multiple of 8", args.k);
  RequireArgument(!args.ordered || HasManyTile(args), "LaunchGemm",
                  "a product that does not take ordered inputs has them, inputs", args.k);
  switch (args.format) {
    case WeightFormat::kBf16: return LaunchGemmOf<WeightFormat::kBf16>(args, stream);
    case WeightFormat::kFp8: return LaunchGemmOf<WeightFormat::kFp8>(args, stream);
    case WeightFormat::kFp4: return LaunchGemmOf<WeightFormat::kFp4>(args, stream);
    case WeightFormat::kF32: break;
  }
  RequireArgument(false, "LaunchGemm", "products with fp32 weights are for streams only", args.n);
}

}  // namespace lodestone::cuda

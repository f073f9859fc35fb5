#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "kernels/cuda/cuda_check.h"

namespace lodestone::cuda {
namespace {

// Found at run time, so that nothing links against the driver library.
PFN_cuTensorMapEncodeTiled_v12000 Encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &result));
    RequireArgument(result == cudaDriverEntryPointSuccess, "MakeTensorMap",
                    "the driver has no cuTensorMapEncodeTiled", static_cast<int64_t>(result));
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

}  // namespace

CUtensorMap MakeTensorMap(const TensorMapShape& shape) {
  CUtensorMap map{};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      Encoder()(&map, shape.type, static_cast<cuuint32_t>(shape.rank),
                const_cast<void*>(shape.data), reinterpret_cast<const cuuint64_t*>(shape.size),
                reinterpret_cast<const cuuint64_t*>(shape.stride), shape.box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  RequireArgument(result == CUDA_SUCCESS, "MakeTensorMap", "the driver refused the tensor map",
                  static_cast<int64_t>(result));
  return map;
}

}  // namespace lodestone::cuda

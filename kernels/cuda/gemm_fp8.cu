#include "kernels/cuda/device/gemm_launch.cuh"

namespace lodestone::cuda {

template void LaunchGemmOf<WeightFormat::kFp8>(const GemmArgs& args, cudaStream_t stream);

}  // namespace lodestone::cuda

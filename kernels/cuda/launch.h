#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/cuda_check.h"

namespace lodestone::cuda {

struct LaunchShape {
  int64_t blocks = 1;
  int threads = 1;
  int shared_bytes = 0;  // dynamic
  int cluster = 1;       // thread blocks of one cluster
};

// Launches `kernel` so that its blocks may be placed while the kernel before it in the stream still
// runs. REQUIRES: every thread of the kernel calls WaitForPreviousKernel before it reads or writes
// global memory.
template <typename... Params, typename... Args>
void LaunchOverlapped(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                      const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  const cudaLaunchConfig_t config = {.gridDim = dim3(static_cast<unsigned>(shape.blocks)),
                                     .blockDim = dim3(static_cast<unsigned>(shape.threads)),
                                     .dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes),
                                     .stream = stream,
                                     .attrs = attributes,
                                     .numAttrs = shape.cluster > 1 ? 2u : 1u};
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace lodestone::cuda

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
// runs (programmatic dependent launch; in a graph, a programmatic edge). Every kernel of a step is
// launched so. The rules of the chain, with the wrappers of device/async_copy.cuh:
//   1. AllowNextKernel() comes first. The next kernel's blocks are placed once all blocks of this
//      one run and there is room, so nobody is starved; without it they wait for this kernel's
//      end. Later only where the next kernel's first loads would hold this one's up
//      (hyper_connection.cu).
//   2. Before WaitForPreviousKernel(): set-up, and loads of what no kernel of a step writes:
//      weights, norm vectors, tables. A step's time is mostly the weights', so start them here.
//   3. After it: all else. REQUIRES: every thread calls it before it reads what an earlier kernel
//      of the stream wrote, and before it writes global memory. It returns when all earlier
//      kernels are complete, not only the last.
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

// How many clusters of this shape run at once.
template <typename... Params>
int MaxActiveClusters(void (*kernel)(Params...), const LaunchShape& shape) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  const cudaLaunchConfig_t config = {.gridDim = dim3(static_cast<unsigned>(shape.blocks)),
                                     .blockDim = dim3(static_cast<unsigned>(shape.threads)),
                                     .dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes),
                                     .stream = nullptr,
                                     .attrs = &attribute,
                                     .numAttrs = 1};
  int count = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
  return count;
}

}  // namespace lodestone::cuda

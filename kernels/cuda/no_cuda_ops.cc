// For binaries built without CUDA.

#include "kernels/cuda/cuda_ops.h"

namespace lodestone {

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(DeviceId device) {
  const absl::Status opened = OpenDevice(device);  // says that there is no CUDA
  return opened.ok() ? absl::InternalError("no CUDA ops for " + Name(device)) : opened;
}

}  // namespace lodestone

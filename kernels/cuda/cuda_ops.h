#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "runtime/device.h"

namespace lodestone {

// The CUDA backend: tensors of params are in device memory, activations bf16; ops queue kernels on
// the stream, which must be one of `device`. PackWeight alone works on host memory: the packed form
// is row-major, quantised weights widened to bf16 (exact), and is copied to the device as it is.
// All sums are formed in an order that depends on the row alone (kernels/cuda/gemm.h), so the
// determinism that op_params.h promises holds. PackRows and ScatterRows want `digests` in device
// memory and the slot in pinned or device memory.
//
// UNIMPLEMENTED if the binary was built without CUDA; UNAVAILABLE, saying why, if the device cannot
// be used.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(DeviceId device);

}  // namespace lodestone

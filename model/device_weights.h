#pragma once

#include "absl/status/statusor.h"
#include "model/weights.h"
#include "runtime/device.h"

namespace lodestone {

// The same weights in the memory of `device`; those of the host are given back. The device's ops
// keep the packed form that they were packed into. Errors of Buffer::Allocate; INTERNAL if the copy
// fails.
absl::StatusOr<Weights> CopyToDevice(Weights weights, DeviceId device);

}  // namespace lodestone

#pragma once

#include <memory>
#include <string>

#include "kernels/ops.h"
#include "runtime/device.h"

namespace lodestone {

// The CUDA ops for params in host memory, so that test bodies made for the other backends run on
// them: every op copies what its params view to the device, runs, and copies back what it wrote.
// The device memory beside the copies is NaN, and stays so or the test fails. Uses cuda:0. What
// lies there already (Device::kCuda: large weights) is used where it is.
//
// Null, with the reason in `why`, if the device cannot be used.
std::unique_ptr<Ops> MakeMirrorOps(std::string* why);

// One for all tests of the process. REQUIRES: there is a device.
const Ops& Mirror();

}  // namespace lodestone

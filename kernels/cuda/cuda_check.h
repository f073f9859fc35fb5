#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace lodestone::cuda {

// Ends the process with the call that failed. Launches report wrong shapes here; faults of running
// kernels surface when the stream is synchronised.
inline void CheckCuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
  std::abort();
}
#define CUDA_CHECK(call) ::lodestone::cuda::CheckCuda((call), #call, __FILE__, __LINE__)

// Ends the process unless a launcher's argument is as its header requires.
inline void RequireArgument(bool holds, const char* launcher, const char* what, int64_t found) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s, found %lld\n", launcher, what, static_cast<long long>(found));
  std::abort();
}

struct DeviceTraits {
  int processors = 1;
  bool sm90 = false;  // code for sm_90a runs here
};
// Of the current device; looked up once per device.
inline const DeviceTraits& CurrentDevice() {
  constexpr int kMaxDevices = 64;
  static DeviceTraits traits[kMaxDevices];
  static bool known[kMaxDevices] = {};
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  if (!known[device]) {
    int major = 0;
    int minor = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    CUDA_CHECK(
        cudaDeviceGetAttribute(&traits[device].processors, cudaDevAttrMultiProcessorCount, device));
    traits[device].sm90 = major == 9 && minor == 0;
    known[device] = true;
  }
  return traits[device];
}

}  // namespace lodestone::cuda

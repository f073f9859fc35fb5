// For binaries built without CUDA: no device can be opened, so nothing else is ever called.

#include <cstdlib>

#include "runtime/cuda_calls.h"

namespace lodestone::cuda_calls {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "this binary was built without CUDA (LODESTONE_CUDA): only the device cpu is possible");
}

}  // namespace

absl::Status Open(int) { return NotBuilt(); }
absl::StatusOr<DeviceInfo> Describe(int) { return NotBuilt(); }
absl::StatusOr<std::byte*> AllocateDevice(int, int64_t) { return NotBuilt(); }
absl::StatusOr<std::byte*> AllocatePinned(int, int64_t) { return NotBuilt(); }
void FreeDevice(int, std::byte*) { std::abort(); }
void FreePinned(std::byte*) { std::abort(); }
absl::Status CopyToDevice(int, std::byte*, const std::byte*, int64_t) { return NotBuilt(); }
absl::StatusOr<void*> CreateStream(int) { return NotBuilt(); }
void DestroyStream(int, void*) { std::abort(); }
absl::Status Synchronize(int, void*) { return NotBuilt(); }
void Copy(int, void*, void*, const void*, int64_t) { std::abort(); }
void FillBytes(int, void*, void*, int, int64_t) { std::abort(); }
void FillWords(int, void*, void*, uint32_t, int64_t) { std::abort(); }
absl::StatusOr<void*> CreateEvent(int) { return NotBuilt(); }
void DestroyEvent(int, void*) { std::abort(); }
void RecordEvent(int, void*, void*) { std::abort(); }
void WaitEvent(int, void*, void*) { std::abort(); }
absl::StatusOr<bool> EventPassed(int, void*) { return NotBuilt(); }
absl::Status BeginCapture(int, void*) { return NotBuilt(); }
absl::StatusOr<void*> EndCapture(int, void*) { return NotBuilt(); }
void LaunchGraph(int, void*, void*) { std::abort(); }
void DestroyGraph(int, void*) { std::abort(); }

}  // namespace lodestone::cuda_calls

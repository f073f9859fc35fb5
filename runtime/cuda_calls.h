#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device.h"

// What runtime/ asks of CUDA, without a CUDA header, so that everything above links with or without
// it: cuda_calls.cc, or no_cuda_calls.cc in binaries built without CUDA, where every call is
// UNIMPLEMENTED. Errors carry the call and what CUDA says. `stream` is a cudaStream_t.
namespace lodestone::cuda_calls {

// The device exists, the driver works; it is the calling thread's from now on.
absl::Status Open(int device);
absl::StatusOr<DeviceInfo> Describe(int device);

// Zeroed memory of the device, or page-locked host memory that the device may address.
absl::StatusOr<std::byte*> AllocateDevice(int device, int64_t num_bytes);
absl::StatusOr<std::byte*> AllocatePinned(int device, int64_t num_bytes);
void FreeDevice(int device, std::byte* memory);
void FreePinned(std::byte* memory);
// From host memory of any kind; returns when it is there.
absl::Status CopyToDevice(int device, std::byte* to, const std::byte* from, int64_t num_bytes);

absl::StatusOr<void*> CreateStream(int device);
void DestroyStream(int device, void* stream);
absl::Status Synchronize(int device, void* stream);
// Queued; memory of either side, host memory pinned.
void Copy(int device, void* stream, void* to, const void* from, int64_t num_bytes);
void FillBytes(int device, void* stream, void* to, int value, int64_t num_bytes);
void FillWords(int device, void* stream, void* to, uint32_t value, int64_t num_words);

// Places on streams of `device`. An event is one after Record; WaitEvent queues.
absl::StatusOr<void*> CreateEvent(int device);
void DestroyEvent(int device, void* event);
void RecordEvent(int device, void* event, void* stream);
void WaitEvent(int device, void* stream, void* event);
// Whether the device has passed it; the first failure of anything on the device.
absl::StatusOr<bool> EventPassed(int device, void* event);

// Between the two, what this thread queues on the stream is recorded, not run. EndCapture: it as a
// cudaGraphExec_t, its memory on the device (RESOURCE_EXHAUSTED if there is none).
absl::Status BeginCapture(int device, void* stream);
absl::StatusOr<void*> EndCapture(int device, void* stream);
void LaunchGraph(int device, void* stream, void* graph);
void DestroyGraph(int device, void* graph);

}  // namespace lodestone::cuda_calls

#include "runtime/cuda_calls.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>

#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone::cuda_calls {
namespace {

std::string Text(const char* call, cudaError_t error) {
  return std::string(call) + ": " + cudaGetErrorString(error);
}

// Programmer errors: a copy or launch with arguments that CUDA refuses.
void Must(cudaError_t error, const char* call) {
  CHECK(error == cudaSuccess) << Text(call, error);
}

// Found at run time, so that nothing links against the driver library.
PFN_cuMemsetD32Async_v3020 WordFiller() {
  static const PFN_cuMemsetD32Async_v3020 filler = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    Must(cudaGetDriverEntryPointByVersion("cuMemsetD32Async", &function, 3020, cudaEnableDefault,
                                          &result),
         "cudaGetDriverEntryPoint");
    CHECK(result == cudaDriverEntryPointSuccess) << "the driver has no cuMemsetD32Async";
    return reinterpret_cast<PFN_cuMemsetD32Async_v3020>(function);
  }();
  return filler;
}

cudaStream_t Handle(int device, void* stream) {
  Must(cudaSetDevice(device), "cudaSetDevice");
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

absl::Status Open(int device) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    return absl::UnavailableError("device cuda:" + std::to_string(device) + ": " +
                                  cudaGetErrorString(counted));
  }
  if (device >= count) {
    return absl::UnavailableError("device cuda:" + std::to_string(device) + ": this machine has " +
                                  std::to_string(count) + " CUDA devices");
  }
  const cudaError_t set = cudaSetDevice(device);
  if (set != cudaSuccess) return absl::UnavailableError(Text("cudaSetDevice", set));
  const cudaError_t started = cudaFree(nullptr);  // makes the context, which may fail
  if (started != cudaSuccess) {
    return absl::UnavailableError("device cuda:" + std::to_string(device) + ": " +
                                  cudaGetErrorString(started));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceInfo> Describe(int device) {
  RETURN_IF_ERROR(Open(device));
  cudaDeviceProp properties{};
  size_t free = 0;
  size_t total = 0;
  cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) return absl::UnavailableError(Text("cudaGetDeviceProperties", error));
  return DeviceInfo{.name = properties.name,
                    .major = properties.major,
                    .minor = properties.minor,
                    .memory_bytes = static_cast<int64_t>(total),
                    .free_bytes = static_cast<int64_t>(free)};
}

absl::StatusOr<std::byte*> AllocateDevice(int device, int64_t num_bytes) {
  RETURN_IF_ERROR(Open(device));
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(num_bytes));
  if (error == cudaSuccess) error = cudaMemset(memory, 0, static_cast<size_t>(num_bytes));
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    cudaFree(memory);
    cudaGetLastError();
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(num_bytes) +
                                        " bytes of device cuda:" + std::to_string(device) + ": " +
                                        cudaGetErrorString(error));
  }
  return static_cast<std::byte*>(memory);
}

absl::StatusOr<std::byte*> AllocatePinned(int device, int64_t num_bytes) {
  RETURN_IF_ERROR(Open(device));
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, static_cast<size_t>(num_bytes), cudaHostAllocPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(num_bytes) +
                                        " bytes of page-locked memory: " +
                                        cudaGetErrorString(error));
  }
  __builtin_memset(memory, 0, static_cast<size_t>(num_bytes));
  return static_cast<std::byte*>(memory);
}

void FreeDevice(int device, std::byte* memory) {
  cudaSetDevice(device);
  cudaFree(memory);
}

void FreePinned(std::byte* memory) { cudaFreeHost(memory); }

absl::Status CopyToDevice(int device, std::byte* to, const std::byte* from, int64_t num_bytes) {
  RETURN_IF_ERROR(Open(device));
  const cudaError_t error =
      cudaMemcpy(to, from, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice);
  return error == cudaSuccess ? absl::OkStatus() : absl::InternalError(Text("cudaMemcpy", error));
}

absl::StatusOr<void*> CreateStream(int device) {
  RETURN_IF_ERROR(Open(device));
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return absl::UnavailableError(Text("cudaStreamCreateWithFlags", error));
  }
  return static_cast<void*>(stream);
}

void DestroyStream(int device, void* stream) {
  cudaSetDevice(device);
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

absl::Status Synchronize(int device, void* stream) {
  const cudaError_t error = cudaStreamSynchronize(Handle(device, stream));
  return error == cudaSuccess ? absl::OkStatus()
                              : absl::InternalError(Text("cudaStreamSynchronize", error));
}

void Copy(int device, void* stream, void* to, const void* from, int64_t num_bytes) {
  Must(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault,
                       Handle(device, stream)),
       "cudaMemcpyAsync");
}

void FillBytes(int device, void* stream, void* to, int value, int64_t num_bytes) {
  Must(cudaMemsetAsync(to, value, static_cast<size_t>(num_bytes), Handle(device, stream)),
       "cudaMemsetAsync");
}

void FillWords(int device, void* stream, void* to, uint32_t value, int64_t num_words) {
  const CUresult result =
      WordFiller()(reinterpret_cast<CUdeviceptr>(to), value, static_cast<size_t>(num_words),
                   Handle(device, stream));
  CHECK(result == CUDA_SUCCESS) << "cuMemsetD32Async: error " << static_cast<int>(result);
}

absl::StatusOr<void*> CreateEvent(int device) {
  RETURN_IF_ERROR(Open(device));
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) {
    return absl::UnavailableError(Text("cudaEventCreateWithFlags", error));
  }
  return static_cast<void*>(event);
}

void DestroyEvent(int device, void* event) {
  cudaSetDevice(device);
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void RecordEvent(int device, void* event, void* stream) {
  Must(cudaEventRecord(static_cast<cudaEvent_t>(event), Handle(device, stream)),
       "cudaEventRecord");
}

void WaitEvent(int device, void* stream, void* event) {
  Must(cudaStreamWaitEvent(Handle(device, stream), static_cast<cudaEvent_t>(event), 0),
       "cudaStreamWaitEvent");
}

absl::StatusOr<bool> EventPassed(int device, void* event) {
  Must(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaErrorNotReady) return false;
  if (error != cudaSuccess) return absl::InternalError(Text("cudaEventQuery", error));
  return true;
}

absl::Status BeginCapture(int device, void* stream) {
  // Other threads may allocate and copy meanwhile.
  const cudaError_t error =
      cudaStreamBeginCapture(Handle(device, stream), cudaStreamCaptureModeThreadLocal);
  return error == cudaSuccess ? absl::OkStatus()
                              : absl::InternalError(Text("cudaStreamBeginCapture", error));
}

absl::StatusOr<void*> EndCapture(int device, void* stream) {
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(Handle(device, stream), &graph);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::InternalError(Text("cudaStreamEndCapture", error));
  }
  cudaGraphExec_t exec = nullptr;
  error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  if (error == cudaSuccess) error = cudaGraphUpload(exec, Handle(device, stream));
  if (error == cudaSuccess) return static_cast<void*>(exec);
  if (exec != nullptr) cudaGraphExecDestroy(exec);
  cudaGetLastError();
  const std::string text = Text("cudaGraphInstantiate", error);
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

void LaunchGraph(int device, void* stream, void* graph) {
  Must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), Handle(device, stream)),
       "cudaGraphLaunch");
}

void DestroyGraph(int device, void* graph) {
  cudaSetDevice(device);
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace lodestone::cuda_calls

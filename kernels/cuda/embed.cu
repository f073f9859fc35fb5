// EmbedTokens: one thread block copies a token's row to each of its streams, 16 bytes a thread.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kVector = 8;  // bf16 of one access

struct EmbedArgs {
  const int32_t* ids;
  const uint16_t* table;
  int64_t table_stride;
  uint16_t* streams;
  int64_t token_stride, stream_stride;
  int num_streams, dims;
};

__global__ void EmbedTokensKernel(const __grid_constant__ EmbedArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  const uint16_t* const from = args.table + args.ids[token] * args.table_stride;
  uint16_t* const to = args.streams + token * args.token_stride;
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < args.dims; i += kThreads * kVector) {
    const uint4 part = *reinterpret_cast<const uint4*>(from + i);
    for (int stream = 0; stream < args.num_streams; ++stream) {
      *reinterpret_cast<uint4*>(to + stream * args.stream_stride + i) = part;
    }
  }
}

}  // namespace

bool HasKernelsForCurrentDevice() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, EmbedTokensKernel) == cudaSuccess;
  cudaGetLastError();  // which would be taken for a later call's
  return found;
}

void LaunchEmbedTokens(const EmbedTokensParams& p, cudaStream_t stream) {
  const int64_t dims = p.table.shape[1];
  RequireArgument(dims % kVector == 0, "LaunchEmbedTokens", "dims are not a multiple of 8", dims);
  LaunchOverlapped(EmbedTokensKernel, {.blocks = p.ids.shape[0], .threads = kThreads}, stream,
                   EmbedArgs{.ids = p.ids.as<int32_t>(),
                             .table = p.table.as<uint16_t>(),
                             .table_stride = p.table.strides[0],
                             .streams = p.streams.as<uint16_t>(),
                             .token_stride = p.streams.strides[0],
                             .stream_stride = p.streams.strides[1],
                             .num_streams = static_cast<int>(p.streams.shape[1]),
                             .dims = static_cast<int>(dims)});
}

}  // namespace lodestone::cuda

// The mixing of residual streams between two sub-layers for many tokens, in two launches: the
// slices of the channels by blocks that stay and keep their share of fn, their sums by way of
// scratch, then one block per token. All sums run in the order of hyper_connection.cu, so both give
// the same bits. Bound by the bytes of the streams; measured on an H200: 0.29 of it for 4,096
// tokens.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hc_finish.cuh"
#include "kernels/cuda/device/hc_slice.cuh"
#include "kernels/cuda/device/hc_update.cuh"
#include "kernels/cuda/hyper_connection.h"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

constexpr int kSlices = HcTile::kSlices;
constexpr int kPaddedSums = HcTile::kPaddedSums;
constexpr int kTurnTokens = 4;  // two blocks have room on a processor at hidden 4,096
constexpr int kSliceThreads = HcTile::kTeamThreads;
constexpr int kFinishThreads = kSlices * 32 + 32;  // a warp per slice, and post and comb

struct alignas(128) HcSlicesShared {
  HcStreamSums<kTurnTokens> sums;
  alignas(16) uint64_t fn_arrived;
};

// HcPost and the sums of one slice, for every gridDim.x / kSlices-th turn of tokens. kChannels as
// in FindSlice.
template <int kChannels>
__global__ void __launch_bounds__(kSliceThreads, 2)
    HcSlicesKernel(const __grid_constant__ HcArgs args,
                   const __grid_constant__ CUtensorMap fn_map) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<HcSlicesShared*>(smem);
  const int channels = kChannels > 0 ? kChannels : args.channels;
  const HcSliceMemory memory = HcSliceMemory::At(smem + sizeof(shared), channels);
  const int number = static_cast<int>(blockIdx.x) % kSlices;
  const int rank = static_cast<int>(threadIdx.x);
  const HcSlice slice = FindSlice<kChannels>(args, number);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    BarrierInit(&shared.fn_arrived, 1);
    BarrierInitFence();
  }
  __syncthreads();
  if (HasEvenSlices(args)) {
    StartBoxesOfFn(fn_map, number, memory, &shared.fn_arrived);
  } else {
    StartCopyOfFn(args, slice, memory, &shared.fn_arrived);
  }
  WaitForPreviousKernel();
  const int step = static_cast<int>(gridDim.x) / kSlices * kTurnTokens;
  for (int first = static_cast<int>(blockIdx.x) / kSlices * kTurnTokens; first < args.num_tokens;
       first += step) {
    UpdateStreams<kTurnTokens>(args, first, slice, memory);
    __syncthreads();
    BarrierWait(&shared.fn_arrived, 0);
    MultiplySlice<kTurnTokens>(memory, slice.count, shared.sums);
    __syncthreads();
    constexpr int kVectors = kPaddedSums / 4;
    if (rank < kTurnTokens * kVectors && first + rank / kVectors < args.num_tokens) {
      const int64_t token = first + rank / kVectors;
      float4* const to =
          reinterpret_cast<float4*>(args.partial + (token * kSlices + number) * kPaddedSums);
      to[rank % kVectors] = shared.sums.Add(rank / kVectors, rank % kVectors);
    }
  }
}

// What remains of one token, a warp per slice.
template <int kChannels>
__global__ void __launch_bounds__(kFinishThreads)
    HcFinishKernel(const __grid_constant__ HcArgs args) {
  __shared__ float squares[kSlices];
  AllowNextKernel();
  const int64_t token = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const HcSlice slice = FindSlice<kChannels>(args, warp);
  const HcMixScale scale = FindScale(args);
  HcNormWeights norm_weights;
  if (warp < kSlices) norm_weights = LoadNormWeights(args, slice);
  WaitForPreviousKernel();
  const float mix = FindMix<HcTile::kSums>(
      args, [&](int number) { return args.partial + (token * kSlices + number) * kPaddedSums; });
  if (warp == kSlices) {
    NamedBarrierArrive(1, kFinishThreads);
    StorePost(args, token, mix, scale);
    __syncwarp();
    return StoreComb(args, token, mix, scale);
  }
  HcCollapsed collapsed;
  const uint16_t* const streams = args.streams + token * args.token_stride + slice.first;
  const HcChunk chunk = LoadFirstChunk(streams, args.stream_stride, slice.count);
  const float own =
      CollapseSlice(args, mix, scale, slice.count, streams, args.stream_stride, chunk, collapsed);
  if (threadIdx.x % 32 == 0) squares[warp] = own;
  NamedBarrierSync(1, kFinishThreads);
  float sum = 0;
#pragma unroll
  for (int number = 0; number < kSlices; ++number) sum += squares[number];
  StoreNormed(args, token, slice, sum, norm_weights, collapsed);
}

template <int kChannels>
void Launch(const HcArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(HcSlicesShared)) +
                               HcSliceMemory::Bytes(args.channels, kTurnTokens);
  CUDA_CHECK(cudaFuncSetAttribute(HcSlicesKernel<kChannels>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  const int64_t turns = (args.num_tokens + kTurnTokens - 1) / kTurnTokens;
  const int64_t resident = std::max(2 * CurrentDevice().processors / kSlices, 1);
  LaunchOverlapped(HcSlicesKernel<kChannels>,
                   {.blocks = std::min(turns, resident) * kSlices,
                    .threads = kSliceThreads,
                    .shared_bytes = static_cast<int>(shared_bytes)},
                   stream, args, MakeFnMap(args));
  LaunchOverlapped(HcFinishKernel<kChannels>,
                   {.blocks = args.num_tokens, .threads = kFinishThreads}, stream, args);
}

}  // namespace

void LaunchHcMany(const HcArgs& args, cudaStream_t stream) {
  constexpr int kFlashChannels = HcTile::kFlashChannels;
  if (args.hidden == kFlashChannels * kSlices) return Launch<kFlashChannels>(args, stream);
  Launch<0>(args, stream);
}

}  // namespace lodestone::cuda

// The mixing of residual streams between two sub-layers: HcPost of the one and HcPre of the next
// (HcBoundaryParams), or HcPre alone.
//
// Few tokens (ChooseHcTokens): one launch. A cluster of kSlices blocks has kTokens tokens; block
// `s` has slice `s` of the channels of every stream, so that HcPost, its share of fn's products and
// of the collapse need no other block's channels. The blocks hand each other their sums twice,
// those of fn z, then those of u^2, by stores into each other's shared memory that a barrier there
// counts. fn comes by bulk copies that start before the kernel waits for the one before. Post and
// comb have a warp each, in the block of the token's number, while others form x. Many tokens:
// hyper_connection_many.cu. Bound by the bytes of fn (1.6 MB at hidden 4,096), which is 0.4 us;
// what is measured on an H200, 3.3 us for one token and 4.7 for 32, is latency, of the steps
// between the wait and the last store.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/hc_finish.cuh"
#include "kernels/cuda/device/hc_slice.cuh"
#include "kernels/cuda/device/hc_update.cuh"
#include "kernels/cuda/hyper_connection.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/tiles.h"

namespace lodestone::cuda {
namespace {

constexpr int kSlices = HcTile::kSlices;
constexpr int kThreads = HcTile::kTeamThreads;
constexpr int kCombWarp = HcTile::kWarps - 1;  // comb of the token with the block's number
constexpr int kPostWarp = HcTile::kWarps - 2;  // post of it
constexpr int kPreVectors = HcTile::kPreSums / 4;
constexpr int kVectors = HcTile::kPaddedSums / 4;

// What the other blocks write is behind the barrier that counts it.
template <int kTokens>
struct HcShared {
  float4 pre[kSlices][kTokens][kPreVectors];  // sums for pre and of squares, of every token
  float4 all[kSlices][kVectors];              // all sums, of the token with this block's number
  float squares[kTokens][kSlices];            // u^2
  HcStreamSums<kTokens> own;                  // of this block's slice
  alignas(16) uint64_t fn_arrived;
  uint64_t sums_arrived;
  uint64_t squares_arrived;
};

// A block's place: which slice, and which tokens.
struct HcPlace {
  int number, first_token, num_tokens;  // num_tokens: of kTokens those that exist
};

template <int kTokens>
__device__ HcPlace FindPlace(const HcArgs& args) {
  const int first = static_cast<int>(blockIdx.x) / kSlices * kTokens;
  return {static_cast<int>(blockIdx.x) % kSlices, first, min(kTokens, args.num_tokens - first)};
}

template <int kTokens>
__device__ void InitBarriers(HcShared<kTokens>& shared) {
  BarrierInit(&shared.fn_arrived, 1);
  BarrierInit(&shared.sums_arrived, 1);
  BarrierInit(&shared.squares_arrived, 1);
  BarrierInitFence();
}

// By one thread. Sums come of every token, there or not; squares of those that are.
template <int kTokens>
__device__ void ExpectSums(const HcPlace& place, HcShared<kTokens>& shared) {
  BarrierArriveExpect(&shared.sums_arrived,
                      sizeof(shared.pre) + (place.number < kTokens ? sizeof(shared.all) : 0));
  BarrierArriveExpect(&shared.squares_arrived, place.num_tokens * sizeof(shared.squares[0]));
}

// The sums of this block's slice: those for pre to every block of the cluster, all of a token to
// the block of its number. By the team.
template <int kTokens>
__device__ void SendSums(int number, HcShared<kTokens>& shared) {
  constexpr int kPre = kTokens * kPreVectors;
  static_assert(kPre * kSlices + kTokens * kVectors <= kThreads);
  const int i = static_cast<int>(threadIdx.x);
  const bool is_pre = i < kPre * kSlices;
  const int left = i - kPre * kSlices;
  if (left >= kTokens * kVectors) return;
  const int token = is_pre ? i % kPre / kPreVectors : left / kVectors;
  const int vector = is_pre ? i % kPreVectors : left % kVectors;
  const int to = is_pre ? i / kPre : token;
  const float4* const place =
      is_pre ? &shared.pre[number][token][vector] : &shared.all[number][vector];
  StoreAsync(ClusterAddress(place, to), shared.own.Add(token, vector),
             ClusterAddress(&shared.sums_arrived, to));
}

// x of one token, this block's slice of it. By one warp.
template <int kTokens>
__device__ void StoreX(const HcArgs& args, const HcPlace& place, int t, const HcSlice& slice,
                       const HcSliceMemory& memory, const HcMixScale& scale,
                       const HcNormWeights& norm_weights, HcShared<kTokens>& shared) {
  const HcChunk chunk = LoadFirstChunk(memory.Z(t, 0), memory.channels, slice.count);
  BarrierWaitCluster(&shared.sums_arrived, 0);
  const float mix = FindMix<HcTile::kPreSums>(
      args, [&](int number) { return reinterpret_cast<const float*>(shared.pre[number][t]); });
  HcCollapsed collapsed;
  const float own = CollapseSlice(args, mix, scale, slice.count, memory.Z(t, 0), memory.channels,
                                  chunk, collapsed);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kSlices) {
    StoreAsync(ClusterAddress(&shared.squares[t][place.number], lane), own,
               ClusterAddress(&shared.squares_arrived, lane));
  }
  BarrierWaitCluster(&shared.squares_arrived, 0);
  float squares = 0;
#pragma unroll
  for (int number = 0; number < kSlices; ++number) squares += shared.squares[t][number];
  StoreNormed(args, place.first_token + t, slice, squares, norm_weights, collapsed);
}

// What a warp does with the sums of all slices.
template <int kTokens>
__device__ void Finish(const HcArgs& args, const HcPlace& place, int warp, const HcSlice& slice,
                       const HcSliceMemory& memory, const HcMixScale& scale,
                       const HcNormWeights& norm_weights, HcShared<kTokens>& shared) {
  static_assert(kTokens <= kPostWarp);
  // The first warp always has a token, so a block stays until all that others write has arrived.
  if (warp < place.num_tokens) {
    return StoreX(args, place, warp, slice, memory, scale, norm_weights, shared);
  }
  if (warp < kPostWarp || place.number >= place.num_tokens) return;
  BarrierWaitCluster(&shared.sums_arrived, 0);
  const float mix = FindMix<HcTile::kSums>(
      args, [&](int number) { return reinterpret_cast<const float*>(shared.all[number]); });
  const int64_t token = place.first_token + place.number;
  if (warp == kPostWarp) StorePost(args, token, mix, scale);
  if (warp == kCombWarp) StoreComb(args, token, mix, scale);
}

// kChannels as in FindSlice.
template <int kTokens, int kChannels>
__global__ void __launch_bounds__(kThreads, 2)
    HcBoundaryKernel(const __grid_constant__ HcArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<HcShared<kTokens>*>(smem);
  const int channels = kChannels > 0 ? kChannels : args.channels;
  const HcSliceMemory memory = HcSliceMemory::At(smem + sizeof(shared), channels);
  const HcPlace place = FindPlace<kTokens>(args);
  const HcSlice slice = FindSlice<kChannels>(args, place.number);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  if (threadIdx.x == 0) ExpectSums(place, shared);
  StartCopyOfFn(args, slice, memory, &shared.fn_arrived);
  ClusterArrive();
  const HcMixScale scale = FindScale(args);
  // With five tokens a warp has no registers to keep the norm's weights in from here on.
  constexpr bool kLoadsLate = kTokens > 4;
  HcNormWeights norm_weights;
  if (!kLoadsLate && warp < kTokens) norm_weights = LoadNormWeights(args, slice);
  if (kLoadsLate && threadIdx.x == 0 && slice.count > 0) {
    PrefetchBulk(args.norm_weight + slice.first, static_cast<uint32_t>(slice.count) * 2);
  }
  HcClusterUpdate<kTokens> update(args, place.first_token, slice);
  ClusterWait();  // the others' barriers are ready
  WaitForPreviousKernel();
  update.Run(memory);
  __syncthreads();
  AllowNextKernel();  // the streams are read (HcClusterUpdate): the next kernel copies its fn now
  BarrierWait(&shared.fn_arrived, 0);
  MultiplySlice<kTokens, kChannels>(memory, slice.count, shared.own);
  if (kLoadsLate && warp < kTokens) norm_weights = LoadNormWeights(args, slice);
  __syncthreads();
  SendSums(place.number, shared);
  Finish(args, place, warp, slice, memory, scale, norm_weights, shared);
}

template <int kTokens>
void LaunchBoundary(const HcArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(HcShared<kTokens>)) +
                               HcSliceMemory::Bytes(args.channels, kTokens);
  constexpr int kFlashChannels = HcTile::kFlashChannels;
  const auto kernel = args.hidden == kFlashChannels * kSlices
                          ? HcBoundaryKernel<kTokens, kFlashChannels>
                          : HcBoundaryKernel<kTokens, 0>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  LaunchOverlapped(kernel,
                   {.blocks = (args.num_tokens + kTokens - 1) / kTokens * kSlices,
                    .threads = kThreads,
                    .shared_bytes = static_cast<int>(shared_bytes),
                    .cluster = kSlices},
                   stream, args);
}

HcArgs ArgsOf(const HcPreParams& p) {
  const int64_t hidden = p.streams.shape[2];
  RequireArgument(p.streams.shape[1] == HcTile::kStreams, "LaunchHcPre", "streams are not 4",
                  p.streams.shape[1]);
  RequireArgument(hidden % HcTile::kChunk == 0 && hidden <= HcTile::kMaxHidden, "LaunchHcPre",
                  "hidden is not a multiple of 8 up to 8192", hidden);
  return {.streams = p.streams.as<uint16_t>(),
          .token_stride = p.streams.strides[0],
          .stream_stride = p.streams.strides[1],
          .fn = p.fn.data.as<float>(),
          .base = p.base.as<float>(),
          .scale = p.scale.as<float>(),
          .norm_weight = p.norm_weight.as<uint16_t>(),
          .partial = p.scratch.as<float>(),
          .x = p.x.as<uint16_t>(),
          .post = p.post.as<float>(),
          .comb = p.comb.as<float>(),
          .x_stride = p.x.strides[0],
          .post_stride = p.post.strides[0],
          .comb_stride = p.comb.strides[0],
          .num_tokens = static_cast<int>(p.streams.shape[0]),
          .hidden = static_cast<int>(hidden),
          .channels = HcSliceChannels(static_cast<int>(hidden)),
          .sinkhorn_iters = p.sinkhorn_iters,
          .rms_eps = p.rms_eps,
          .hc_eps = p.hc_eps,
          .hidden_inverse = 1.0f / static_cast<float>(hidden)};
}

void Launch(const HcArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  switch (ChooseHcTokens(args.num_tokens, CurrentDevice().sm90)) {
    case 1:
      return LaunchBoundary<1>(args, stream);
    case 2:
      return LaunchBoundary<2>(args, stream);
    case 3:
      return LaunchBoundary<3>(args, stream);
    case 4:
      return LaunchBoundary<4>(args, stream);
    case 5:
      return LaunchBoundary<5>(args, stream);
    default:
      return LaunchHcMany(args, stream);
  }
}

}  // namespace

int64_t HcPreScratchBytes(int64_t num_tokens) {
  return num_tokens * kSlices * HcTile::kPaddedSums * 4;
}

void LaunchHcPre(const HcPreParams& p, cudaStream_t stream) { Launch(ArgsOf(p), stream); }

void LaunchHcBoundary(const HcBoundaryParams& p, cudaStream_t stream) {
  HcArgs args = ArgsOf(p.pre);
  args.y = p.post.x.as<uint16_t>();
  args.y_stride = p.post.x.strides[0];
  args.old_post = p.post.post.as<float>();
  args.old_post_stride = p.post.post.strides[0];
  args.old_comb = p.post.comb.as<float>();
  args.old_comb_stride = p.post.comb.strides[0];
  RequireArgument(args.old_post_stride % 4 == 0, "LaunchHcBoundary",
                  "rows of post are not multiples of 16 bytes apart", args.old_post_stride);
  RequireArgument(args.old_comb_stride % 4 == 0, "LaunchHcBoundary",
                  "rows of comb are not multiples of 16 bytes apart", args.old_comb_stride);
  Launch(args, stream);
}

}  // namespace lodestone::cuda

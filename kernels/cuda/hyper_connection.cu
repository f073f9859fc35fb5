// The mixing of residual streams between two sub-layers: HcPost of the one and HcPre of the next
// (HcBoundaryParams), or HcPre alone.
//
// Few tokens (HcPlan): one launch. A cluster of kSlices blocks has kTokens tokens; block `s` has
// slice `s` of the channels of every stream, so that HcPost, its share of fn's products and of the
// collapse need no other block's channels. The blocks hand each other their sums twice, through
// distributed shared memory: those of fn z, then those of u^2. fn comes by bulk copies that start
// before the kernel waits for the one before; Sinkhorn has a warp of its own, in the block of the
// token's number, while the others form x.
// Many tokens: the same slices by blocks that stay and keep their share of fn, sums by way of
// scratch, then one block per token. All sums run in the same order, so both give the same bits.
// Bound by the bytes of fn and, from about 64 tokens on, of the streams.

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/tiles.h"

namespace lodestone::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kStreams = HcTile::kStreams;
constexpr int kMixes = HcTile::kMixes;
constexpr int kSums = HcTile::kSums;
constexpr int kPaddedSums = HcTile::kPaddedSums;
constexpr int kSlices = HcTile::kSlices;
constexpr int kChunk = HcTile::kChunk;
constexpr int kMaxChunks = HcTile::kMaxChunks;
constexpr int kVector = 4;                               // channels of a thread in HcPost
constexpr int kSumThreads = HcTile::kWarps * 32;
constexpr int kBoundaryThreads = kSumThreads + 32;       // the last warp: post and comb
constexpr int kFinishThreads = kSlices * 32 + 32;        // a warp per slice, and post and comb

struct HcArgs {
  const uint16_t* y = nullptr;  // of the sub-layer before; null: the streams stay as they are
  const float* old_post = nullptr;
  const float* old_comb = nullptr;
  int64_t y_stride = 0;
  int64_t old_post_stride = 0;
  int64_t old_comb_stride = 0;
  uint16_t* streams;
  int64_t token_stride, stream_stride;
  const float* fn;  // [kMixes, kStreams * hidden]
  const float* base;
  const float* scale;
  const uint16_t* norm_weight;
  float* partial;  // [T, kSlices, kPaddedSums]; many tokens
  uint16_t* x;
  float* post;
  float* comb;
  int64_t x_stride, post_stride, comb_stride;
  int num_tokens, hidden, channels;  // channels: HcSliceChannels
  int sinkhorn_iters;
  float rms_eps, hc_eps;
};

// The channels of one slice.
struct Slice {
  int first, count;
};

__device__ Slice FindSlice(const HcArgs& args, int number) {
  const int first = number * args.channels;
  return {first, max(0, min(args.channels, args.hidden - first))};
}

// One slice of fn and the streams of some tokens: fp32 [kMixes][kStreams][channels] and then bf16
// [tokens][kStreams][channels], behind the other shared memory.
struct SliceMemory {
  float* fn;
  uint16_t* z;
  int channels;
  __device__ float* Fn(int row, int stream) const {
    return fn + (row * kStreams + stream) * channels;
  }
  __device__ uint16_t* Z(int token, int stream) const {
    return z + (token * kStreams + stream) * channels;
  }
};

__device__ SliceMemory MemoryAt(uint8_t* at, int channels) {
  auto* const fn = reinterpret_cast<float*>(at);
  return {fn, reinterpret_cast<uint16_t*>(fn + kMixes * kStreams * channels), channels};
}

int64_t SliceMemoryBytes(int64_t channels, int tokens) {
  return (2 * kMixes + tokens) * kStreams * channels * 2;
}

// Starts the copy of the slice of fn. By the first warp; the barrier is initialised.
__device__ void StartCopyOfFn(const HcArgs& args, const Slice& slice, const SliceMemory& memory,
                              uint64_t* barrier) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<uint32_t>(slice.count) * 4;
  if (lane == 0) BarrierArriveExpect(barrier, kMixes * kStreams * bytes);
  __syncwarp();
  if (bytes == 0) return;
  for (int i = lane; i < kMixes * kStreams; i += 32) {
    const float* const from =
        args.fn + static_cast<int64_t>(i) * args.hidden + slice.first;  // row i / 4, stream i % 4
    CopyBulk(memory.Fn(i / kStreams, i % kStreams), from, bytes, barrier);
  }
}

// HcPost of four channels of a token, whose streams are in z.
__device__ void UpdateVector(const HcArgs& args, int64_t token, const uint2& packed_y,
                             uint2 (&packed)[kStreams]) {
  const float* const post = args.old_post + token * args.old_post_stride;
  const float* const comb = args.old_comb + token * args.old_comb_stride;
  float y[kVector];
  UnpackBf16(packed_y.x, y[0], y[1]);
  UnpackBf16(packed_y.y, y[2], y[3]);
  float z[kStreams][kVector];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    UnpackBf16(packed[j].x, z[j][0], z[j][1]);
    UnpackBf16(packed[j].y, z[j][2], z[j][3]);
  }
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float out[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out[i] = post[k] * y[i];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) out[i] = fmaf(comb[j * kStreams + k], z[j][i], out[i]);
    }
    packed[k] = {PackBf16(out[0], out[1]), PackBf16(out[2], out[3])};
  }
}

// HcPost of kTokens tokens: the streams of the slice, to shared memory and, where they changed, back.
template <int kTokens>
__device__ void UpdateStreams(const HcArgs& args, int first_token, const Slice& slice,
                              const SliceMemory& memory) {
  const int vectors = slice.count / kVector;
  for (int task = static_cast<int>(threadIdx.x); task < kTokens * vectors; task += kSumThreads) {
    const int t = task / vectors;
    const int channel = task % vectors * kVector;
    const int64_t token = first_token + t;
    uint2 z[kStreams] = {};
    if (token < args.num_tokens) {
      uint16_t* const streams = args.streams + token * args.token_stride + slice.first + channel;
      uint2 y = {};
      if (args.y != nullptr) {
        y = *reinterpret_cast<const uint2*>(args.y + token * args.y_stride + slice.first + channel);
      }
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        z[k] = *reinterpret_cast<const uint2*>(streams + k * args.stream_stride);
      }
      if (args.y != nullptr) {
        UpdateVector(args, token, y, z);
#pragma unroll
        for (int k = 0; k < kStreams; ++k) {
          *reinterpret_cast<uint2*>(streams + k * args.stream_stride) = z[k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      *reinterpret_cast<uint2*>(memory.Z(t, k) + channel) = z[k];
    }
  }
}

// Sums of a slice, by stream.
template <int kTokens>
struct StreamSums {
  alignas(16) float value[kStreams][kTokens][kPaddedSums];
};

__device__ float Dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// fn z and z^2 of the slice. A warp has kRows rows of fn and one of the streams; lanes have four
// channels at a time.
template <int kTokens>
__device__ void MultiplySlice(const SliceMemory& memory, int count, StreamSums<kTokens>& sums) {
  constexpr int kRows = HcTile::kRows;
  constexpr int kRowGroups = HcTile::kRowGroups;
  constexpr int kSquares = (kTokens + kRowGroups - 1) / kRowGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp % kRowGroups;
  const int stream = warp / kRowGroups;
  float acc[kTokens * kRows] = {};
  float squares[kSquares] = {};  // of tokens `group`, `group` + kRowGroups, ...
#pragma unroll 2
  for (int channel = 4 * lane; channel < count; channel += 128) {
    float4 z[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const uint2 packed = *reinterpret_cast<const uint2*>(memory.Z(t, stream) + channel);
      UnpackBf16(packed.x, z[t].x, z[t].y);
      UnpackBf16(packed.y, z[t].z, z[t].w);
      if (t % kRowGroups == group) {
        squares[t / kRowGroups] = Dot(z[t], z[t], squares[t / kRowGroups]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 factor =
          *reinterpret_cast<const float4*>(memory.Fn(group * kRows + r, stream) + channel);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        acc[t * kRows + r] = Dot(factor, z[t], acc[t * kRows + r]);
      }
    }
  }
  int index = 0;
  int left = kTokens * kRows;
  const float sum = WarpSums<kTokens * kRows>(acc, index, left);
  if (left > 0) sums.value[stream][index / kRows][group * kRows + index % kRows] = sum;
#pragma unroll
  for (int i = 0; i < kSquares; ++i) {
    const int token = group + i * kRowGroups;
    const float square = WarpSum(squares[i]);
    if (lane == 0 && token < kTokens) sums.value[stream][token][kMixes] = square;
  }
}

// base and scale for the sums that a lane has: mix * scale + base is what they are for.
struct MixScale {
  float base, scale;
};

// Weights, so it may be called before the kernel waits.
__device__ MixScale FindScale(const HcArgs& args) {
  const int row = static_cast<int>(threadIdx.x) % 32;
  return {row < kMixes ? args.base[row] : 0.0f,
          args.scale[row < kStreams ? 0 : row < 2 * kStreams ? 1 : 2]};
}

// mixes: (fn z)[row] * rsqrt(mean(z^2) + eps), lane `row`, from the sums of the slices in order. By
// one warp; Partial(slice)[row] is their place.
template <typename Partial>
__device__ float FindMix(const HcArgs& args, const Partial& partial) {
  const int row = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (row < kSums) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) sum += partial(slice)[row];
  }
  const float squares = __shfl_sync(~0u, sum, kMixes);
  const float mean_factor = 1.0f / static_cast<float>(kStreams * args.hidden);
  return sum * (1.0f / sqrtf(squares * mean_factor + args.rms_eps));
}

// post and comb of one token, by one warp.
__device__ void StorePostAndComb(const HcArgs& args, int64_t token, float mix,
                                 const MixScale& own) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float scaled = mix * own.scale + own.base;
  if (lane >= kStreams && lane < 2 * kStreams) {
    args.post[token * args.post_stride + lane - kStreams] = 2.0f * Sigmoid(scaled);
  }
  const float comb =
      Sinkhorn(__shfl_down_sync(~0u, scaled, 2 * kStreams), args.hc_eps, args.sinkhorn_iters);
  if (lane < kStreams * kStreams) args.comb[token * args.comb_stride + lane] = comb;
}

// u of one token and slice, kept by the lanes of a warp.
struct Collapsed {
  float u[kMaxChunks][kChunk];
};

// u = round(sum_m pre[m] * streams[m]); returns sum u^2. Stream m of the slice is at `streams` + m *
// stride.
__device__ float CollapseSlice(const HcArgs& args, float mix, const MixScale& own, int count,
                               const uint16_t* streams, int64_t stride, Collapsed& collapsed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float weight = Sigmoid(mix * own.scale + own.base) + args.hc_eps;
  float pre[kStreams];
  for (int m = 0; m < kStreams; ++m) pre[m] = __shfl_sync(~0u, weight, m);
  float squares = 0;
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + lane) * kChunk;
    if (channel >= count) continue;
    float sums[kChunk] = {};
    for (int m = 0; m < kStreams; ++m) {
      const uint4 packed = *reinterpret_cast<const uint4*>(streams + m * stride + channel);
      float z[kChunk];
      UnpackBf16(packed.x, z[0], z[1]);
      UnpackBf16(packed.y, z[2], z[3]);
      UnpackBf16(packed.z, z[4], z[5]);
      UnpackBf16(packed.w, z[6], z[7]);
      for (int i = 0; i < kChunk; ++i) sums[i] = fmaf(pre[m], z[i], sums[i]);
    }
    for (int i = 0; i < kChunk; ++i) {
      const float u = RoundToBf16(sums[i]);
      collapsed.u[chunk][i] = u;
      squares = fmaf(u, u, squares);
    }
  }
  return WarpSum(squares);
}

// The norm's weights of a slice, kept by the lanes of a warp. May be loaded before the kernel waits.
struct NormWeights {
  uint4 chunk[kMaxChunks];
};

__device__ NormWeights LoadNormWeights(const HcArgs& args, const Slice& slice) {
  NormWeights weights = {};
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + static_cast<int>(threadIdx.x) % 32) * kChunk;
    if (channel >= slice.count) continue;
    weights.chunk[chunk] =
        *reinterpret_cast<const uint4*>(args.norm_weight + slice.first + channel);
  }
  return weights;
}

// x = round(norm_weight * u * rsqrt(mean(u^2) + eps)).
__device__ void StoreNormed(const HcArgs& args, int64_t token, const Slice& slice, float squares,
                            const NormWeights& weights, const Collapsed& collapsed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(args.hidden) + args.rms_eps);
#pragma unroll
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + lane) * kChunk;
    if (channel >= slice.count) continue;
    const uint4& packed = weights.chunk[chunk];
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t out[4];
    for (int i = 0; i < 4; ++i) {
      float low, high;
      UnpackBf16(words[i], low, high);
      out[i] = PackBf16(low * (collapsed.u[chunk][2 * i] * factor),
                        high * (collapsed.u[chunk][2 * i + 1] * factor));
    }
    *reinterpret_cast<uint4*>(args.x + token * args.x_stride + slice.first + channel) = {
        out[0], out[1], out[2], out[3]};
  }
}

template <int kTokens>
struct BoundaryShared {
  float4 sums[kSlices][kTokens][kPaddedSums / 4];  // written by the other blocks
  float squares[kTokens][kSlices];                 // the same
  StreamSums<kTokens> own;                         // of this block's slice
  alignas(16) uint64_t fn_arrived;
};

// The sums of this block's slice, to every block of the cluster.
template <int kTokens>
__device__ void SendSums(BoundaryShared<kTokens>& shared) {
  const cg::cluster_group cluster = cg::this_cluster();
  constexpr int kVectors = kTokens * kPaddedSums / 4;
  const unsigned own = cluster.block_rank();
  for (int i = static_cast<int>(threadIdx.x); i < kVectors * kSlices; i += kBoundaryThreads) {
    const int vector = i % kVectors;
    float4 sum = {};
#pragma unroll
    for (int stream = 0; stream < kStreams; ++stream) {
      const float4 part = reinterpret_cast<const float4*>(shared.own.value[stream])[vector];
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    float4* const there = cluster.map_shared_rank(&shared.sums[own][0][0],
                                                  static_cast<unsigned>(i / kVectors));
    there[vector] = sum;
  }
}

template <int kTokens>
__global__ void __launch_bounds__(kBoundaryThreads)
    HcBoundaryKernel(const __grid_constant__ HcArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<BoundaryShared<kTokens>*>(smem);
  const SliceMemory memory = MemoryAt(smem + sizeof(shared), args.channels);
  const cg::cluster_group cluster = cg::this_cluster();
  const int own = static_cast<int>(cluster.block_rank());
  const int first_token = static_cast<int>(blockIdx.x) / kSlices * kTokens;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Slice slice = FindSlice(args, own);
  AllowNextKernel();
  if (warp == 0) {
    if (lane == 0) {
      BarrierInit(&shared.fn_arrived, 1);
      BarrierInitFence();
    }
    __syncwarp();
    StartCopyOfFn(args, slice, memory, &shared.fn_arrived);
  }
  ClusterArrive();
  const MixScale scale = FindScale(args);
  NormWeights norm_weights;
  if (warp < kTokens) norm_weights = LoadNormWeights(args, slice);
  WaitForPreviousKernel();
  if (warp < HcTile::kWarps) UpdateStreams<kTokens>(args, first_token, slice, memory);
  __syncthreads();
  if (warp < HcTile::kWarps) {
    BarrierWait(&shared.fn_arrived, 0);
    MultiplySlice<kTokens>(memory, slice.count, shared.own);
  }
  ClusterWait();  // the others' shared memory exists
  __syncthreads();
  SendSums<kTokens>(shared);
  ClusterArrive();
  ClusterWait();
  const auto mix_of = [&](int t) {
    return FindMix(args, [&](int number) {
      return reinterpret_cast<const float*>(&shared.sums[number][t][0]);
    });
  };
  if (warp == HcTile::kWarps) {
    ClusterArrive();
    if (own < kTokens && first_token + own < args.num_tokens) {
      StorePostAndComb(args, first_token + own, mix_of(own), scale);
    }
    ClusterWait();
    return;
  }
  const int64_t token = first_token + warp;
  const bool collapses = warp < kTokens && token < args.num_tokens;
  Collapsed collapsed;
  if (collapses) {
    const float squares = CollapseSlice(args, mix_of(warp), scale, slice.count, memory.Z(warp, 0),
                                        memory.channels, collapsed);
    if (lane < kSlices) *cluster.map_shared_rank(&shared.squares[warp][own], lane) = squares;
  }
  ClusterArrive();
  ClusterWait();
  if (!collapses) return;
  float squares = 0;
#pragma unroll
  for (int number = 0; number < kSlices; ++number) squares += shared.squares[warp][number];
  StoreNormed(args, token, slice, squares, norm_weights, collapsed);
}

constexpr int kManyTokens = 4;  // of one turn of a block that stays

struct SlicesShared {
  StreamSums<kManyTokens> sums;
  alignas(16) uint64_t fn_arrived;
};

// HcPost and the sums of one slice, for every gridDim.x / kSlices-th group of tokens.
__global__ void __launch_bounds__(kSumThreads, 2) HcSlicesKernel(const __grid_constant__ HcArgs args) {
  extern __shared__ __align__(128) uint8_t smem[];
  auto& shared = *reinterpret_cast<SlicesShared*>(smem);
  const SliceMemory memory = MemoryAt(smem + sizeof(shared), args.channels);
  const int number = static_cast<int>(blockIdx.x) % kSlices;
  const Slice slice = FindSlice(args, number);
  AllowNextKernel();
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) {
      BarrierInit(&shared.fn_arrived, 1);
      BarrierInitFence();
    }
    __syncwarp();
    StartCopyOfFn(args, slice, memory, &shared.fn_arrived);
  }
  WaitForPreviousKernel();
  const int step = static_cast<int>(gridDim.x) / kSlices * kManyTokens;
  for (int first = static_cast<int>(blockIdx.x) / kSlices * kManyTokens; first < args.num_tokens;
       first += step) {
    UpdateStreams<kManyTokens>(args, first, slice, memory);
    __syncthreads();
    BarrierWait(&shared.fn_arrived, 0);
    MultiplySlice<kManyTokens>(memory, slice.count, shared.sums);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kManyTokens * kPaddedSums; i += kSumThreads) {
      const int token = first + i / kPaddedSums;
      const int row = i % kPaddedSums;
      if (token >= args.num_tokens || row >= kSums) continue;
      float sum = 0;
#pragma unroll
      for (int stream = 0; stream < kStreams; ++stream) {
        sum += shared.sums.value[stream][i / kPaddedSums][row];
      }
      args.partial[(static_cast<int64_t>(token) * kSlices + number) * kPaddedSums + row] = sum;
    }
  }
}

// What remains of one token, a warp per slice.
__global__ void __launch_bounds__(kFinishThreads)
    HcFinishKernel(const __grid_constant__ HcArgs args) {
  __shared__ float squares[kSlices];
  AllowNextKernel();
  const int64_t token = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Slice slice = FindSlice(args, warp);
  const MixScale scale = FindScale(args);
  NormWeights norm_weights;
  if (warp < kSlices) norm_weights = LoadNormWeights(args, slice);
  WaitForPreviousKernel();
  const float mix = FindMix(args, [&](int number) {
    return args.partial + (token * kSlices + number) * kPaddedSums;
  });
  if (warp == kSlices) {
    NamedBarrierArrive(1, kFinishThreads);
    return StorePostAndComb(args, token, mix, scale);
  }
  Collapsed collapsed;
  const uint16_t* const streams = args.streams + token * args.token_stride + slice.first;
  const float own =
      CollapseSlice(args, mix, scale, slice.count, streams, args.stream_stride, collapsed);
  if (threadIdx.x % 32 == 0) squares[warp] = own;
  NamedBarrierSync(1, kFinishThreads);
  float sum = 0;
#pragma unroll
  for (int number = 0; number < kSlices; ++number) sum += squares[number];
  StoreNormed(args, token, slice, sum, norm_weights, collapsed);
}

template <int kTokens>
void LaunchBoundary(const HcArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(BoundaryShared<kTokens>)) +
                               SliceMemoryBytes(args.channels, kTokens);
  const auto kernel = HcBoundaryKernel<kTokens>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  LaunchOverlapped(kernel,
                   {.blocks = (args.num_tokens + kTokens - 1) / kTokens * kSlices,
                    .threads = kBoundaryThreads,
                    .shared_bytes = static_cast<int>(shared_bytes),
                    .cluster = kSlices},
                   stream, args);
}

void LaunchMany(const HcArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes = static_cast<int64_t>(sizeof(SlicesShared)) +
                               SliceMemoryBytes(args.channels, kManyTokens);
  CUDA_CHECK(cudaFuncSetAttribute(HcSlicesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  const int64_t groups = (args.num_tokens + kManyTokens - 1) / kManyTokens;
  const int64_t resident = std::max(2 * CurrentDevice().processors / kSlices, 1);
  LaunchOverlapped(HcSlicesKernel,
                   {.blocks = std::min(groups, resident) * kSlices,
                    .threads = kSumThreads,
                    .shared_bytes = static_cast<int>(shared_bytes)},
                   stream, args);
  LaunchOverlapped(HcFinishKernel, {.blocks = args.num_tokens, .threads = kFinishThreads}, stream,
                   args);
}

HcArgs ArgsOf(const HcPreParams& p) {
  const int64_t hidden = p.streams.shape[2];
  RequireArgument(p.streams.shape[1] == kStreams, "LaunchHcPre", "streams are not 4",
                  p.streams.shape[1]);
  RequireArgument(hidden % kChunk == 0 && hidden <= HcTile::kMaxHidden, "LaunchHcPre",
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
          .hc_eps = p.hc_eps};
}

void Launch(const HcArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  switch (ChooseHcTokens(args.num_tokens, CurrentDevice().sm90)) {
    case 1: return LaunchBoundary<1>(args, stream);
    case 2: return LaunchBoundary<2>(args, stream);
    case 3: return LaunchBoundary<3>(args, stream);
    case 4: return LaunchBoundary<4>(args, stream);
    case 5: return LaunchBoundary<5>(args, stream);
    default: return LaunchMany(args, stream);
  }
}

}  // namespace

int64_t HcPreScratchBytes(int64_t num_tokens) { return num_tokens * kSlices * kPaddedSums * 4; }

void LaunchHcPre(const HcPreParams& p, cudaStream_t stream) { Launch(ArgsOf(p), stream); }

void LaunchHcBoundary(const HcBoundaryParams& p, cudaStream_t stream) {
  HcArgs args = ArgsOf(p.pre);
  args.y = p.post.x.as<uint16_t>();
  args.y_stride = p.post.x.strides[0];
  args.old_post = p.post.post.as<float>();
  args.old_post_stride = p.post.post.strides[0];
  args.old_comb = p.post.comb.as<float>();
  args.old_comb_stride = p.post.comb.strides[0];
  Launch(args, stream);
}

}  // namespace lodestone::cuda

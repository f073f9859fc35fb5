// The mixing of residual streams around a sub-layer (HcPreParams, HcPostParams, HcHeadParams).
//
// HcPre is two kernels. The first multiplies a slice of kSliceDims of the flattened streams with all
// rows of fn: one block per slice and group of tokens, so that even one token's fn (1.6 MB at hidden
// 4096) is read by many processors. The second, one block per token, adds the slices in order; its
// first warp then runs Sinkhorn for `comb` while the others form and normalise x, which do not need
// it. Bound by latency up to about 64 tokens, then by the bytes of the streams.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kStreams = 4;                              // M
constexpr int kMixes = kStreams * (kStreams + 2);        // rows of fn
constexpr int kSums = kMixes + 1;                        // and the sum of squares
constexpr int kSliceDims = 512;                          // of one block
constexpr int kSliceTokens = 8;                          // tokens of one block
constexpr int kSliceThreads = 256;
constexpr int kFinishThreads = 256;
constexpr int kMaxHidden = 8192;
constexpr int kLaneDims = kSliceDims / 32;

struct HcPreArgs {
  const uint16_t* streams;
  int64_t token_stride, stream_stride;
  const float* fn;  // [kMixes, kStreams * hidden]
  const float* base;
  const float* scale;
  const uint16_t* norm_weight;
  float* partial;  // [T, slices, kSums]
  uint16_t* x;
  float* post;
  float* comb;
  int64_t x_stride, post_stride, comb_stride;
  int64_t num_tokens;
  int hidden, num_slices, sinkhorn_iters;
  float rms_eps, hc_eps;
};

// Element `i` of the flattened streams of a token.
__device__ float StreamElement(const HcPreArgs& args, int64_t token, int i) {
  const int stream = i / args.hidden;
  return Bf16ToFloat(args.streams[token * args.token_stride + stream * args.stream_stride +
                                  (i - stream * args.hidden)]);
}

__global__ void HcPreSliceKernel(const __grid_constant__ HcPreArgs args) {
  __shared__ float z[kSliceTokens][kSliceDims];
  const int slice = static_cast<int>(blockIdx.x) % args.num_slices;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) / args.num_slices * kSliceTokens;
  const int tokens = static_cast<int>(min(static_cast<int64_t>(kSliceTokens),
                                          args.num_tokens - first_token));
  const int total = kStreams * args.hidden;
  const int first_dim = slice * kSliceDims;
  WaitForPreviousKernel();
  for (int i = static_cast<int>(threadIdx.x); i < tokens * kSliceDims; i += kSliceThreads) {
    const int dim = first_dim + i % kSliceDims;
    z[i / kSliceDims][i % kSliceDims] =
        dim < total ? StreamElement(args, first_token + i / kSliceDims, dim) : 0.0f;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kSums; row += kSliceThreads / 32) {
    float factors[kLaneDims];
    for (int j = 0; j < kLaneDims; ++j) {
      const int dim = first_dim + lane + 32 * j;
      factors[j] = row < kMixes && dim < total ? args.fn[static_cast<int64_t>(row) * total + dim] : 0;
    }
    for (int t = 0; t < tokens; ++t) {
      float sum = 0;
      for (int j = 0; j < kLaneDims; ++j) {
        const float value = z[t][lane + 32 * j];
        sum = fmaf(row < kMixes ? factors[j] : value, value, sum);
      }
      sum = WarpSum(sum);
      if (lane == 0) {
        args.partial[((first_token + t) * args.num_slices + slice) * kSums + row] = sum;
      }
    }
  }
}

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// comb [kStreams][kStreams] nearly doubly stochastic, by one thread: the last pass normalises
// columns. Spec 6.1.
__device__ void Sinkhorn(float (&c)[kStreams][kStreams], float eps, int iters) {
  const auto divide_rows = [&] {
    for (int j = 0; j < kStreams; ++j) {
      float sum = eps;
      for (int k = 0; k < kStreams; ++k) sum += c[j][k];
      const float factor = 1.0f / sum;
      for (int k = 0; k < kStreams; ++k) c[j][k] *= factor;
    }
  };
  const auto divide_columns = [&] {
    for (int k = 0; k < kStreams; ++k) {
      float sum = eps;
      for (int j = 0; j < kStreams; ++j) sum += c[j][k];
      const float factor = 1.0f / sum;
      for (int j = 0; j < kStreams; ++j) c[j][k] *= factor;
    }
  };
  for (int j = 0; j < kStreams; ++j) {  // row softmax, eps added after the division
    float largest = c[j][0];
    for (int k = 1; k < kStreams; ++k) largest = fmaxf(largest, c[j][k]);
    float sum = 0;
    for (int k = 0; k < kStreams; ++k) sum += c[j][k] = expf(c[j][k] - largest);
    for (int k = 0; k < kStreams; ++k) c[j][k] = c[j][k] / sum + eps;
  }
  divide_columns();
#pragma unroll 1
  for (int iter = 1; iter < iters; ++iter) {
    divide_rows();
    divide_columns();
  }
}

// post and comb of one token, by the threads of one warp.
__device__ void StorePostAndComb(const HcPreArgs& args, int64_t token, const float* mixes) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < kStreams) {
    const int at = kStreams + lane;
    args.post[token * args.post_stride + lane] =
        2.0f * Sigmoid(mixes[at] * args.scale[1] + args.base[at]);
  }
  float c[kStreams][kStreams];
  for (int j = 0; j < kStreams; ++j) {
    for (int k = 0; k < kStreams; ++k) {
      const int at = 2 * kStreams + j * kStreams + k;
      c[j][k] = mixes[at] * args.scale[2] + args.base[at];
    }
  }
  Sinkhorn(c, args.hc_eps, args.sinkhorn_iters);
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    if (lane == i) args.comb[token * args.comb_stride + i] = c[i / kStreams][i % kStreams];
  }
}

// mixes[row] = (fn z)[row] * rsqrt(mean(z^2) + eps), from the slices in order. By one warp.
__device__ void SumSlices(const float* partial, int num_slices, int num_mixes, int sum_stride,
                          float mean_factor, float eps, float* mixes) {
  const int row = static_cast<int>(threadIdx.x);
  float sum = 0;
  if (row <= num_mixes) {
    for (int slice = 0; slice < num_slices; ++slice) sum += partial[slice * sum_stride + row];
  }
  const float squares = __shfl_sync(~0u, sum, num_mixes);
  if (row < num_mixes) mixes[row] = sum * (1.0f / sqrtf(squares * mean_factor + eps));
}

struct FinishShared {
  float mixes[32];
  float partial[kFinishThreads / 32];
  float row[];  // u, then x
};

// x = RMSNorm(round(sum_m pre[m] * streams[m])) by the threads from `first` on, which meet at named
// barrier 1.
__device__ void CollapseAndNorm(const HcPreArgs& args, int64_t token, FinishShared& shared) {
  constexpr int kFirst = 32;
  constexpr int kTeam = kFinishThreads - kFirst;
  const int rank = static_cast<int>(threadIdx.x) - kFirst;
  float pre[kStreams];
  for (int m = 0; m < kStreams; ++m) {
    pre[m] = Sigmoid(shared.mixes[m] * args.scale[0] + args.base[m]) + args.hc_eps;
  }
  float squares = 0;
  for (int i = rank; i < args.hidden; i += kTeam) {
    float sum = 0;
    for (int m = 0; m < kStreams; ++m) {
      sum = fmaf(pre[m], Bf16ToFloat(args.streams[token * args.token_stride +
                                                  m * args.stream_stride + i]), sum);
    }
    const float u = RoundToBf16(sum);
    shared.row[i] = u;
    squares = fmaf(u, u, squares);
  }
  squares = WarpSum(squares);
  if (threadIdx.x % 32 == 0) shared.partial[threadIdx.x / 32] = squares;
  NamedBarrierSync(1, kTeam);
  squares = shared.partial[1];
  for (int warp = 2; warp < kFinishThreads / 32; ++warp) squares += shared.partial[warp];
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(args.hidden) + args.rms_eps);
  for (int i = rank; i < args.hidden; i += kTeam) {
    args.x[token * args.x_stride + i] =
        FloatToBf16(Bf16ToFloat(args.norm_weight[i]) * (shared.row[i] * factor));
  }
}

__global__ void HcPreFinishKernel(const __grid_constant__ HcPreArgs args) {
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<FinishShared*>(smem);
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  if (threadIdx.x < 32) {
    SumSlices(args.partial + token * args.num_slices * kSums, args.num_slices, kMixes, kSums,
              1.0f / static_cast<float>(kStreams * args.hidden), args.rms_eps, shared.mixes);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    StorePostAndComb(args, token, shared.mixes);
  } else {
    CollapseAndNorm(args, token, shared);
  }
}

constexpr int kPostThreads = 128;
constexpr int kVector = 8;  // channels of a thread

struct HcPostArgs {
  const uint16_t* x;
  const float* post;
  const float* comb;
  uint16_t* streams;
  int64_t x_stride, post_stride, comb_stride, token_stride, stream_stride;
  int hidden, blocks_per_token;
};

__device__ void Unpack(const uint4& packed, float (&values)[kVector]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ uint4 Pack(const float (&values)[kVector]) {
  return {PackBf16(values[0], values[1]), PackBf16(values[2], values[3]),
          PackBf16(values[4], values[5]), PackBf16(values[6], values[7])};
}

// streams[k] = round(post[k] * x + sum_j comb[j][k] * streams[j]), 8 channels a thread.
__global__ void HcPostKernel(const __grid_constant__ HcPostArgs args) {
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x / args.blocks_per_token;
  const int channel =
      (static_cast<int>(blockIdx.x) % args.blocks_per_token * kPostThreads +
       static_cast<int>(threadIdx.x)) * kVector;
  if (channel >= args.hidden) return;
  uint16_t* const streams = args.streams + token * args.token_stride + channel;
  float x[kVector];
  float z[kStreams][kVector];
  Unpack(*reinterpret_cast<const uint4*>(args.x + token * args.x_stride + channel), x);
  for (int j = 0; j < kStreams; ++j) {
    Unpack(*reinterpret_cast<const uint4*>(streams + j * args.stream_stride), z[j]);
  }
  for (int k = 0; k < kStreams; ++k) {
    const float post = args.post[token * args.post_stride + k];
    float out[kVector];
    for (int i = 0; i < kVector; ++i) out[i] = post * x[i];
    for (int j = 0; j < kStreams; ++j) {
      const float comb = args.comb[token * args.comb_stride + j * kStreams + k];
      for (int i = 0; i < kVector; ++i) out[i] = fmaf(comb, z[j][i], out[i]);
    }
    *reinterpret_cast<uint4*>(streams + k * args.stream_stride) = Pack(out);
  }
}

constexpr int kHeadThreads = 512;

struct HcHeadArgs {
  const uint16_t* streams;
  int64_t token_stride, stream_stride;
  const int32_t* rows;
  const float* fn;  // [kStreams, kStreams * hidden]
  const float* base;
  const float* scale;
  const uint16_t* norm_weight;
  uint16_t* x;
  int64_t x_stride;
  int hidden;
  float rms_eps, hc_eps;
};

// One block per row: products, collapse and norm.
__global__ void HcHeadKernel(const __grid_constant__ HcHeadArgs args) {
  extern __shared__ float row[];
  WaitForPreviousKernel();
  const uint16_t* const streams = args.streams + args.rows[blockIdx.x] * args.token_stride;
  float sums[kStreams] = {};
  float squares = 0;
  const int total = kStreams * args.hidden;
  for (int i = static_cast<int>(threadIdx.x); i < total; i += kHeadThreads) {
    const int stream = i / args.hidden;
    const float value =
        Bf16ToFloat(streams[stream * args.stream_stride + (i - stream * args.hidden)]);
    squares = fmaf(value, value, squares);
    for (int m = 0; m < kStreams; ++m) {
      sums[m] = fmaf(args.fn[static_cast<int64_t>(m) * total + i], value, sums[m]);
    }
  }
  squares = TeamSum<kHeadThreads>(squares);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(total) + args.rms_eps);
  float pre[kStreams];
  for (int m = 0; m < kStreams; ++m) {
    const float mix = TeamSum<kHeadThreads>(sums[m]) * factor;
    pre[m] = Sigmoid(mix * args.scale[0] + args.base[m]) + args.hc_eps;
  }
  for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += kHeadThreads) {
    float sum = 0;
    for (int m = 0; m < kStreams; ++m) {
      sum = fmaf(pre[m], Bf16ToFloat(streams[m * args.stream_stride + i]), sum);
    }
    row[i] = RoundToBf16(sum);
  }
  __syncthreads();
  RmsNormRow<kHeadThreads>(row, args.hidden, args.norm_weight, args.rms_eps);
  StoreRow<kHeadThreads>(row, args.hidden, args.x + blockIdx.x * args.x_stride);
}

int64_t NumSlices(int64_t hidden) { return (kStreams * hidden + kSliceDims - 1) / kSliceDims; }

void RequireShape(const char* launcher, int64_t streams, int64_t hidden) {
  RequireArgument(streams == kStreams, launcher, "streams are not 4", streams);
  RequireArgument(hidden % kVector == 0 && hidden <= kMaxHidden, launcher,
                  "hidden is not a multiple of 8 up to 8192", hidden);
}

}  // namespace

int64_t HcPreScratchBytes(int64_t num_tokens) {
  return num_tokens * NumSlices(kMaxHidden) * kSums * 4;
}

void LaunchHcPre(const HcPreParams& p, cudaStream_t stream) {
  const int64_t hidden = p.streams.shape[2];
  RequireShape("LaunchHcPre", p.streams.shape[1], hidden);
  const int64_t tokens = p.streams.shape[0];
  const HcPreArgs args = {.streams = p.streams.as<uint16_t>(),
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
                          .num_tokens = tokens,
                          .hidden = static_cast<int>(hidden),
                          .num_slices = static_cast<int>(NumSlices(hidden)),
                          .sinkhorn_iters = p.sinkhorn_iters,
                          .rms_eps = p.rms_eps,
                          .hc_eps = p.hc_eps};
  const int64_t groups = (tokens + kSliceTokens - 1) / kSliceTokens;
  LaunchOverlapped(HcPreSliceKernel,
                   {.blocks = groups * args.num_slices, .threads = kSliceThreads}, stream, args);
  LaunchOverlapped(HcPreFinishKernel,
                   {.blocks = tokens,
                    .threads = kFinishThreads,
                    .shared_bytes = static_cast<int>(sizeof(FinishShared) + hidden * 4)},
                   stream, args);
}

void LaunchHcPost(const HcPostParams& p, cudaStream_t stream) {
  const int64_t hidden = p.streams.shape[2];
  RequireShape("LaunchHcPost", p.streams.shape[1], hidden);
  constexpr int64_t kBlockChannels = kPostThreads * kVector;
  const HcPostArgs args = {
      .x = p.x.as<uint16_t>(),
      .post = p.post.as<float>(),
      .comb = p.comb.as<float>(),
      .streams = p.streams.as<uint16_t>(),
      .x_stride = p.x.strides[0],
      .post_stride = p.post.strides[0],
      .comb_stride = p.comb.strides[0],
      .token_stride = p.streams.strides[0],
      .stream_stride = p.streams.strides[1],
      .hidden = static_cast<int>(hidden),
      .blocks_per_token = static_cast<int>((hidden + kBlockChannels - 1) / kBlockChannels)};
  LaunchOverlapped(HcPostKernel,
                   {.blocks = p.streams.shape[0] * args.blocks_per_token, .threads = kPostThreads},
                   stream, args);
}

void LaunchHcHead(const HcHeadParams& p, cudaStream_t stream) {
  const int64_t hidden = p.streams.shape[2];
  RequireShape("LaunchHcHead", p.streams.shape[1], hidden);
  LaunchOverlapped(HcHeadKernel,
                   {.blocks = p.rows.shape[0],
                    .threads = kHeadThreads,
                    .shared_bytes = static_cast<int>(hidden * 4)},
                   stream,
                   HcHeadArgs{.streams = p.streams.as<uint16_t>(),
                              .token_stride = p.streams.strides[0],
                              .stream_stride = p.streams.strides[1],
                              .rows = p.rows.as<int32_t>(),
                              .fn = p.fn.data.as<float>(),
                              .base = p.base.as<float>(),
                              .scale = p.scale.as<float>(),
                              .norm_weight = p.norm_weight.as<uint16_t>(),
                              .x = p.x.as<uint16_t>(),
                              .x_stride = p.x.strides[0],
                              .hidden = static_cast<int>(hidden),
                              .rms_eps = p.rms_eps,
                              .hc_eps = p.hc_eps});
}

}  // namespace lodestone::cuda

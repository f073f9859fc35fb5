// The mixing of residual streams after the last sub-layer (HcPostParams) and for the head
// (HcHeadParams). HcPost: 8 channels a thread, bound by the bytes of the streams. HcHead: one block
// per row of logits.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kStreams = HcTile::kStreams;

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

__device__ uint4 Pack(const float (&values)[kVector]) {
  return {PackBf16(values[0], values[1]), PackBf16(values[2], values[3]),
          PackBf16(values[4], values[5]), PackBf16(values[6], values[7])};
}

// streams[k] = round(post[k] * x + sum_j comb[j][k] * streams[j]), 8 channels a thread.
__global__ void HcPostKernel(const __grid_constant__ HcPostArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x / args.blocks_per_token;
  const int channel =
      (static_cast<int>(blockIdx.x) % args.blocks_per_token * kPostThreads +
       static_cast<int>(threadIdx.x)) * kVector;
  if (channel >= args.hidden) return;
  uint16_t* const streams = args.streams + token * args.token_stride + channel;
  float x[kVector];
  float z[kStreams][kVector];
  UnpackBf16(*reinterpret_cast<const uint4*>(args.x + token * args.x_stride + channel), x);
  for (int j = 0; j < kStreams; ++j) {
    UnpackBf16(*reinterpret_cast<const uint4*>(streams + j * args.stream_stride), z[j]);
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
  AllowNextKernel();
  WaitForPreviousKernel();
  const uint16_t* const streams = args.streams + args.rows[blockIdx.x] * args.token_stride;
  float sums[kStreams] = {};
  float squares = 0;
  const int total = kStreams * args.hidden;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < total; i += kHeadThreads * kVector) {
    const int stream = i / args.hidden;
    float z[kVector];
    UnpackBf16(*reinterpret_cast<const uint4*>(streams + stream * args.stream_stride +
                                               (i - stream * args.hidden)),
               z);
    for (int j = 0; j < kVector; ++j) squares = fmaf(z[j], z[j], squares);
    for (int m = 0; m < kStreams; ++m) {
      const auto* const factors =
          reinterpret_cast<const float4*>(args.fn + static_cast<int64_t>(m) * total + i);
      for (int half = 0; half < kVector / 4; ++half) {
        const float4 factor = __ldg(factors + half);
        sums[m] = fmaf(factor.x, z[4 * half], sums[m]);
        sums[m] = fmaf(factor.y, z[4 * half + 1], sums[m]);
        sums[m] = fmaf(factor.z, z[4 * half + 2], sums[m]);
        sums[m] = fmaf(factor.w, z[4 * half + 3], sums[m]);
      }
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

void RequireShape(const char* launcher, int64_t streams, int64_t hidden) {
  RequireArgument(streams == kStreams, launcher, "streams are not 4", streams);
  RequireArgument(hidden % kVector == 0 && hidden <= HcTile::kMaxHidden, launcher,
                  "hidden is not a multiple of 8 up to 8192", hidden);
}

}  // namespace

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

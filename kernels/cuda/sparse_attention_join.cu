// Joins the splits of sparse_attention_blocks.cu and adds the sink. A thread block a head of a
// token; bound by the bytes of the partial sums, 2 KiB a split.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sparse_attention.h"

namespace lodestone::cuda {
namespace {

constexpr int kDims = kAttentionDims;
constexpr int kRopeDims = kAttentionRopeDims;

// Joins the splits of one head of one token; thread t has dims 4 t .. 4 t + 3.
__global__ void __launch_bounds__(kDims / 4)
    JoinSplitsKernel(const __grid_constant__ SparseAttentionArgs args, int splits) {
#if __CUDA_ARCH__ >= 900
  AllowNextKernel();
  WaitForPreviousKernel();
#endif
  constexpr int kAtOnce = 8;  // loads in flight
  const int64_t token = blockIdx.x / args.num_heads;
  const int64_t head = blockIdx.x % args.num_heads;
  const PartialView partial = PartialOf(args, splits);
  const float2* stats = partial.stats + token * splits * args.num_heads + head;
  const float* sums = partial.sums + (token * splits * args.num_heads + head) * kDims;
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = 0; i < splits; ++i) largest = fmaxf(largest, stats[i * args.num_heads].x);
  const float sink = SinkTerm(args.sink[head], largest);
  float denominator = 0;
  float4 sum{};
  for (int first = 0; first < splits; first += kAtOnce) {
    float2 stat[kAtOnce];
    float4 part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      stat[i] = first + i < splits ? stats[(first + i) * args.num_heads] : float2{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      part[i] = float4{};
      if (stat[i].y != 0) {
        part[i] = *reinterpret_cast<const float4*>(sums + (first + i) * args.num_heads * kDims +
                                                   4 * threadIdx.x);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (stat[i].y == 0) continue;
      const float factor = PowerOfTwo(stat[i].x - largest);
      denominator = fmaf(factor, stat[i].y, denominator);
      sum.x = fmaf(factor, part[i].x, sum.x);
      sum.y = fmaf(factor, part[i].y, sum.y);
      sum.z = fmaf(factor, part[i].z, sum.z);
      sum.w = fmaf(factor, part[i].w, sum.w);
    }
  }
  const float inverse = InverseDenominator(denominator, sink);
  uint32_t rounded[2] = {PackBf16(sum.x * inverse, sum.y * inverse),
                         PackBf16(sum.z * inverse, sum.w * inverse)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int dim = 4 * threadIdx.x + 2 * i;
    if (dim < kDims - kRopeDims) continue;
    const int rope_pair = (dim - (kDims - kRopeDims)) / 2;
    rounded[i] = RotateBack(rounded[i], RopeAngle(args.positions[token], args.freqs[rope_pair]));
  }
  *reinterpret_cast<uint2*>(args.out + int64_t{blockIdx.x} * kDims + 4 * threadIdx.x) = {
      rounded[0], rounded[1]};
}

}  // namespace

void LaunchJoinSplits(const SparseAttentionArgs& args, int splits, cudaStream_t stream) {
  LaunchOverlapped(JoinSplitsKernel,
                   {.blocks = args.num_tokens * args.num_heads, .threads = kDims / 4}, stream, args,
                   splits);
}

}  // namespace lodestone::cuda

// The inputs of products ahead of them (InputsArgs): once, where a product would do it once for
// every tile of its outputs. Rounded for FP8 and FP4 weights: a warp has one group of 128 inputs.
// Ordered alone: a thread has four words. Bound by bytes.

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/round_inputs.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    RoundInputsKernel(const __grid_constant__ InputsArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t groups = NumRoundedGroups(args.k);
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (group >= args.rows * groups) return;
  const int64_t row = group / groups;
  const int64_t at = group % groups * kRoundedGroup + 4 * (threadIdx.x % 32);
  uint2 words = {0, 0};
  if (at < args.k) words = *reinterpret_cast<const uint2*>(args.x + row * args.x_stride + at);
  words = RoundGroup(words);
  if (args.ordered) words = OrderGroup(words);
  if (at < args.k) *reinterpret_cast<uint2*>(args.out + row * args.k + at) = words;
}

__global__ void __launch_bounds__(kThreads)
    OrderInputsKernel(const __grid_constant__ InputsArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t quads = args.k / 8;  // of a row
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (quad >= args.rows * quads) return;
  const int64_t row = quad / quads;
  const int64_t at = quad % quads;
  const auto* const words =
      reinterpret_cast<const uint32_t*>(args.x + row * args.x_stride) + at / 4 * 16 + at % 4;
  reinterpret_cast<uint4*>(args.out)[quad] = {words[0], words[4], words[8], words[12]};
}

}  // namespace

void LaunchInputs(const InputsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  RequireArgument(args.k % (args.ordered ? 32 : 8) == 0 && args.x_stride % 8 == 0, "LaunchInputs",
                  "inputs are not a multiple of 8, or of 32 if ordered", args.k);
  if (args.round) {
    const int64_t groups = args.rows * NumRoundedGroups(args.k);
    return LaunchOverlapped(RoundInputsKernel,
                            {.blocks = (groups + kWarps - 1) / kWarps, .threads = kThreads}, stream,
                            args);
  }
  const int64_t quads = args.rows * args.k / 8;
  LaunchOverlapped(OrderInputsKernel,
                   {.blocks = (quads + kThreads - 1) / kThreads, .threads = kThreads}, stream,
                   args);
}

}  // namespace lodestone::cuda

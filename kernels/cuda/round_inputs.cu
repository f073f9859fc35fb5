// Rounds the inputs of products with FP8 and FP4 weights ahead of them (gemm.h): once, where a
// product would do it once for every tile of its outputs. A warp has one group of 128 inputs. Bound
// by bytes.

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/round_inputs.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct RoundInputsArgs {
  const uint16_t* x;
  int64_t x_stride;
  uint16_t* out;  // [rows, k]
  int64_t rows, k;
};

__global__ void __launch_bounds__(kThreads)
    RoundInputsKernel(const __grid_constant__ RoundInputsArgs args) {
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
  if (at < args.k) *reinterpret_cast<uint2*>(args.out + row * args.k + at) = words;
}

}  // namespace

void LaunchRoundInputs(const uint16_t* x, int64_t x_stride, int64_t rows, int64_t k, uint16_t* out,
                       cudaStream_t stream) {
  if (rows == 0) return;
  RequireArgument(k % 8 == 0 && x_stride % 8 == 0, "LaunchRoundInputs",
                  "inputs are not a multiple of 8", k);
  LaunchOverlapped(
      RoundInputsKernel,
      {.blocks = (rows * NumRoundedGroups(k) + kWarps - 1) / kWarps, .threads = kThreads}, stream,
      RoundInputsArgs{.x = x, .x_stride = x_stride, .out = out, .rows = rows, .k = k});
}

}  // namespace lodestone::cuda

// RmsNorm, QueryNormRope, WindowLatent, StoreWindow and IndexQuery, each by itself and QueryRows,
// which is two of them: rows of activations, each normalised, rotated and rounded in shared memory
// by one team of threads. Bound by the bytes of the rows, read once and written once; for a few
// tokens by the launch.

#include <algorithm>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/norm_rope.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

__global__ void RmsNormKernel(const __grid_constant__ RmsNormArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  NormToken(args, blockIdx.x, row);
}

__global__ void WindowLatentKernel(const __grid_constant__ WindowLatentArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  MakeLatent(args, blockIdx.x, row);
}

__global__ void StoreWindowKernel(const __grid_constant__ StoreWindowArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int token = static_cast<int>(blockIdx.x);
  if (!IsStored(args, token)) return;
  LoadRow<kRowThreads>(args.latents + token * args.latents_stride, args.dims, row);
  StoreLatent(args, token, row);
}

// Heads of attention queries, then of index queries, one a warp; either may be none.
struct QueryRowsArgs {
  QueryNormRopeArgs query;
  IndexQueryArgs index;
  int floats;  // of shared memory for a warp
};

__global__ void QueryRowsKernel(const __grid_constant__ QueryRowsArgs args) {
  extern __shared__ float rows[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* const row = rows + warp * args.floats;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarpRows + warp;
  if (index < args.query.num_rows) return NormAndRotateHead(args.query, index, row);
  const int64_t rest = index - args.query.num_rows;
  if (rest < args.index.num_rows) MakeIndexQuery(args.index, rest, row);
}

template <typename Args>
void LaunchRows(void (*kernel)(Args), const Args& args, int64_t rows, int64_t floats,
                cudaStream_t stream) {
  LaunchOverlapped(
      kernel,
      {.blocks = rows, .threads = kRowThreads, .shared_bytes = static_cast<int>(floats * 4)},
      stream, args);
}

void LaunchQueries(QueryRowsArgs args, cudaStream_t stream) {
  args.floats = std::max(args.query.dims, args.index.dims);
  const int64_t rows = args.query.num_rows + args.index.num_rows;
  LaunchRows(QueryRowsKernel, args, (rows + kWarpRows - 1) / kWarpRows,
             int64_t{kWarpRows} * args.floats, stream);
}

}  // namespace

void LaunchRmsNorm(const RmsNormParams& p, cudaStream_t stream) {
  LaunchRows(RmsNormKernel, ArgsOf(p), p.x.shape[0], p.x.shape[1], stream);
}

void LaunchQueryNormRope(const QueryNormRopeParams& p, cudaStream_t stream) {
  LaunchQueries({.query = ArgsOf(p), .index = {}, .floats = 0}, stream);
}

void LaunchIndexQuery(const IndexQueryParams& p, cudaStream_t stream) {
  LaunchQueries({.query = {}, .index = ArgsOf(p), .floats = 0}, stream);
}

void LaunchQueryRows(const QueryRowsParams& p, cudaStream_t stream) {
  LaunchQueries({.query = ArgsOf(p.query), .index = ArgsOf(p.index), .floats = 0}, stream);
}

void LaunchWindowLatent(const WindowLatentParams& p, cudaStream_t stream) {
  LaunchRows(WindowLatentKernel, ArgsOf(p), p.kv.shape[0], p.kv.shape[1], stream);
}

void LaunchStoreWindow(const StoreWindowParams& p, cudaStream_t stream) {
  LaunchRows(StoreWindowKernel, ArgsOf(p), p.latents.shape[0], p.latents.shape[1], stream);
}

}  // namespace lodestone::cuda

// Gated pooling of groups of tokens into cache entries, and the state of the group in progress
// (CompressKvParams).
//
// One thread block per token; those whose token completes a group pool it, channel by channel, from
// the batch's own rows and, for tokens before the batch, from the state. The state is then updated:
// by the same block where every sequence has one token (a decode step), else by a second kernel,
// since other blocks still read it. Bound by the bytes of kv and score, read once.

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/compress_kv.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

__global__ void CompressKvKernel(const __grid_constant__ CompressArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  CompressToken(args, static_cast<int>(blockIdx.x), row);
}

__global__ void UpdateStateKernel(const __grid_constant__ CompressArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int blocks_per_seq = (args.width + kCompressThreads - 1) / kCompressThreads;
  const SeqSpan span = FindSpan(args, static_cast<int>(blockIdx.x) / blocks_per_seq);
  const int channel = static_cast<int>(blockIdx.x) % blocks_per_seq * kCompressThreads +
                      static_cast<int>(threadIdx.x);
  if (channel < args.width) UpdateChannel(args, span, channel);
}

}  // namespace

void LaunchCompressKv(const CompressKvParams& p, cudaStream_t stream) {
  const CompressArgs args = ArgsOf(p);
  LaunchOverlapped(CompressKvKernel,
                   {.blocks = p.batch.num_tokens(),
                    .threads = kCompressThreads,
                    .shared_bytes = args.dims * 4},
                   stream, args);
  if (args.updates_state) return;
  const int64_t blocks_per_seq = (args.width + kCompressThreads - 1) / kCompressThreads;
  LaunchOverlapped(UpdateStateKernel,
                   {.blocks = p.batch.num_seqs() * blocks_per_seq, .threads = kCompressThreads},
                   stream, args);
}

}  // namespace lodestone::cuda

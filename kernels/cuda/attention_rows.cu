// What an attention layer makes of its first products, in one launch (AttentionRowsParams): each
// block has one token of one of the parts, which need nothing of each other. Bound by the launch
// for a few tokens, else by the bytes of the rows.

#include <algorithm>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/compress_kv.cuh"
#include "kernels/cuda/device/norm_rope.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

static_assert(kRowThreads == kCompressThreads);

// Parts in the order of their blocks: query, window, entries, index keys; the last one or two may
// be missing.
struct AttentionRowsArgs {
  RmsNormArgs query;
  WindowLatentArgs window;
  StoreWindowArgs ring;
  CompressArgs compress[2];
  int num_tokens;
};

__global__ void AttentionRowsKernel(const __grid_constant__ AttentionRowsArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int part = static_cast<int>(blockIdx.x) / args.num_tokens;
  const int token = static_cast<int>(blockIdx.x) % args.num_tokens;
  if (part == 0) {
    NormToken(args.query, token, row);
  } else if (part == 1) {
    MakeLatent(args.window, token, row);
    if (IsStored(args.ring, token)) StoreLatent(args.ring, token, row);
  } else {
    CompressToken(args.compress[part - 2], token, row);
  }
}

}  // namespace

void LaunchAttentionRows(const AttentionRowsParams& p, cudaStream_t stream) {
  AttentionRowsArgs args = {.query = ArgsOf(p.query),
                            .window = ArgsOf(p.window),
                            .ring = ArgsOf(p.ring),
                            .compress = {},
                            .num_tokens = static_cast<int>(p.query.x.shape[0])};
  int parts = 2;
  int floats = std::max(args.query.n, args.window.dims);
  for (const CompressKvParams* const params : {&p.entries, &p.index_keys}) {
    if (params->kv.empty()) continue;
    CompressArgs& compress = args.compress[parts++ - 2];
    compress = ArgsOf(*params);
    floats = std::max(floats, compress.dims);
  }
  LaunchOverlapped(AttentionRowsKernel,
                   {.blocks = int64_t{parts} * args.num_tokens,
                    .threads = kRowThreads,
                    .shared_bytes = floats * 4},
                   stream, args);
}

}  // namespace lodestone::cuda

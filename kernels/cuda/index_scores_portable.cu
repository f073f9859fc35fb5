// Index scores with ordinary arithmetic: any architecture, any number of heads and dims. The plain
// path beside index_scores.cu, and the one of sm_100 and sm_120 until they have their own tiles.
//
// One thread block scores the 64 entries of one page for one token: thread (entry, part) sums the
// heads part, part + 4, ... Bound by shared memory reads; not tuned.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kEntries = 64;
constexpr int kParts = 4;
constexpr int kThreads = kEntries * kParts;

// Shared memory: keys [d_i][kEntries] fp32, then queries [H_i][d_i] fp32, then partial sums.
int64_t SharedBytes(const IndexScoresArgs& args) {
  return (args.head_dim * kEntries + args.num_heads * args.head_dim + kThreads) * 4;
}

// The key's factor: its scale under kFp8.
template <IndexKeyFormat kFormat>
__device__ float LoadKeys(const IndexScoresArgs& args, int64_t page, float* keys) {
  const RowBytes bytes = IndexKeyRowBytes(kFormat, args.head_dim);
  const int entry = threadIdx.x % kEntries;
  const uint8_t* payload =
      args.keys.payload + page * args.keys.payload_block_stride + entry * bytes.payload;
  const uint8_t* scale =
      args.keys.scale + page * args.keys.scale_block_stride + entry * bytes.scale;
  for (int i = threadIdx.x / kEntries; i < args.head_dim; i += kParts) {
    keys[i * kEntries + entry] = IndexKeyElement<kFormat>(payload, scale, i);
  }
  if constexpr (kFormat == IndexKeyFormat::kFp8) return *reinterpret_cast<const float*>(scale);
  return 1.0f;
}

template <IndexKeyFormat kFormat>
__global__ void IndexScoresPortableKernel(const __grid_constant__ IndexScoresArgs args) {
  extern __shared__ float smem[];
  float* const keys = smem;
  float* const query = keys + args.head_dim * kEntries;
  float* const partial = query + args.num_heads * args.head_dim;
  const int64_t token = blockIdx.y;
  const int visible = args.num_visible[token];
  const int first = blockIdx.x * kEntries;
  if (first >= visible) return;
  const int64_t page = args.block_table[args.token_seq[token] * args.max_pages + blockIdx.x];
  const float factor = LoadKeys<kFormat>(args, page, keys);
  const int64_t query_size = args.num_heads * args.head_dim;
  for (int64_t i = threadIdx.x; i < query_size; i += kThreads) {
    query[i] = Bf16ToFloat(args.q[token * query_size + i]);
  }
  __syncthreads();
  const int entry = threadIdx.x % kEntries;
  float sum = 0;
  for (int64_t head = threadIdx.x / kEntries; head < args.num_heads; head += kParts) {
    float dot = 0;
    for (int i = 0; i < args.head_dim; ++i) {
      dot = fmaf(query[head * args.head_dim + i], keys[i * kEntries + entry], dot);
    }
    const float relu = dot < 0 ? 0.0f : dot;  // keeps a NaN
    sum = fmaf(args.weight[token * args.num_heads + head], relu, sum);
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kEntries || first + entry >= visible) return;
  for (int part = 1; part < kParts; ++part) sum += partial[part * kEntries + entry];
  args.scores[token * args.score_stride + first + entry] = sum * factor;
}

template <IndexKeyFormat kFormat>
void Launch(const IndexScoresArgs& args, cudaStream_t stream) {
  const int64_t shared_bytes = SharedBytes(args);
  RequireArgument(shared_bytes <= 96 * 1024, "LaunchIndexScoresPortable",
                  "heads x dims exceed the shared memory of a thread block", shared_bytes);
  CUDA_CHECK(cudaFuncSetAttribute(IndexScoresPortableKernel<kFormat>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  const dim3 grid(static_cast<unsigned>((args.max_visible + kEntries - 1) / kEntries),
                  static_cast<unsigned>(args.num_tokens));
  IndexScoresPortableKernel<kFormat>
      <<<grid, kThreads, static_cast<size_t>(shared_bytes), stream>>>(args);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void LaunchIndexScoresPortable(const IndexScoresArgs& args, cudaStream_t stream) {
  switch (args.format) {
    case IndexKeyFormat::kBf16:
      return Launch<IndexKeyFormat::kBf16>(args, stream);
    case IndexKeyFormat::kFp8:
      return Launch<IndexKeyFormat::kFp8>(args, stream);
    case IndexKeyFormat::kFp4:
      return Launch<IndexKeyFormat::kFp4>(args, stream);
    case IndexKeyFormat::kF32:
      RequireArgument(false, "LaunchIndexScores", "fp32 keys are for the CPU only", 0);
  }
}

}  // namespace lodestone::cuda

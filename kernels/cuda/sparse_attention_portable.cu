// Sparse attention with ordinary arithmetic: any architecture, any number of heads and dims, bf16
// and fp8 latents. The plain path beside sparse_attention.cu.
//
// One thread block: one head of one token, 64 keys a step. Each warp scores its keys with the dims
// spread over lanes; then every thread sums its own dims. Bound by L2 reads (each head reads every
// key); not tuned.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/sparse_attention.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxDims = 1024;
constexpr int kDimsPerThread = kMaxDims / kThreads;

struct PortableShared {
  float query[kMaxDims];
  float out[kMaxDims];
  KeyRow rows[kAttentionKeys];
  float scores[kAttentionKeys];  // then probabilities
};

__device__ float ElementOf(const SparseAttentionArgs& args, const KeyRow& row, int dim) {
  return LatentElement(row.own ? KvFormat::kBf16 : args.format, row.payload, row.scale,
                       static_cast<int>(args.head_dim), static_cast<int>(args.rope_dims), dim);
}

// Entries the token attends to under ratio 4. By all threads of the block.
__device__ int CountEntries(const SparseAttentionArgs& args, int64_t token) {
  int count = 0;
  for (int64_t first = 0; first < args.k; first += kThreads) {
    const int64_t at = first + threadIdx.x;
    count += __syncthreads_count(at < args.k && args.top_entries[token * args.k + at] >= 0);
  }
  return count;
}

// Key `index` of the token.
__device__ KeyRow FindRow(const SparseAttentionArgs& args, const TokenKeys& keys, int64_t token,
                          int index) {
  if (index < keys.num_window) return FindWindowRow(args, keys, index);
  const int listed = index - keys.num_window;
  return FindEntryRow(args, keys,
                      args.ratio == 4 ? args.top_entries[token * args.k + listed] : listed);
}

// shared.scores of `count` keys.
__device__ void ScoreKeys(const SparseAttentionArgs& args, int count, float scale,
                          PortableShared& shared) {
  for (int key = threadIdx.x / 32; key < count; key += kWarps) {
    float dot = 0;
    for (int dim = threadIdx.x % 32; dim < args.head_dim; dim += 32) {
      dot = fmaf(shared.query[dim], ElementOf(args, shared.rows[key], dim), dot);
    }
    for (int offset = 16; offset > 0; offset /= 2) dot += __shfl_xor_sync(~0u, dot, offset);
    if (threadIdx.x % 32 == 0) shared.scores[key] = dot * scale;
  }
  __syncthreads();
}

// Divides, rounds, rotates the last dims back, rounds and stores.
__device__ void StoreHead(const SparseAttentionArgs& args, int64_t token, int64_t head,
                          const float (&sums)[kDimsPerThread], float denominator,
                          PortableShared& shared) {
  const int dims = static_cast<int>(args.head_dim);
  for (int i = 0; i < kDimsPerThread; ++i) {
    const int dim = threadIdx.x + i * kThreads;
    if (dim < dims) shared.out[dim] = Bf16ToFloat(FloatToBf16(sums[i] / denominator));
  }
  __syncthreads();
  const int rope_first = dims - static_cast<int>(args.rope_dims);
  for (int pair = threadIdx.x; pair < args.rope_dims / 2; pair += kThreads) {
    float& x = shared.out[rope_first + 2 * pair];
    float& y = shared.out[rope_first + 2 * pair + 1];
    const float2 rotated = RotateBack(x, y, RopeAngle(args.positions[token], args.freqs[pair]));
    x = rotated.x;
    y = rotated.y;
  }
  __syncthreads();
  uint16_t* out = args.out + (token * args.num_heads + head) * args.head_dim;
  for (int dim = threadIdx.x; dim < dims; dim += kThreads) out[dim] = FloatToBf16(shared.out[dim]);
}

__global__ void __launch_bounds__(kThreads)
    SparseAttentionPortableKernel(const __grid_constant__ SparseAttentionArgs args, float scale) {
  __shared__ PortableShared shared;
  const int64_t token = blockIdx.x / args.num_heads;
  const int64_t head = blockIdx.x % args.num_heads;
  TokenKeys keys = FindKeys(args, token);
  if (args.ratio == 4) keys.num_entries = CountEntries(args, token);
  for (int dim = threadIdx.x; dim < args.head_dim; dim += kThreads) {
    shared.query[dim] = Bf16ToFloat(args.q[(token * args.num_heads + head) * args.head_dim + dim]);
  }
  float largest = -INFINITY;
  float denominator = 0;
  float sums[kDimsPerThread] = {};
  for (int first = 0; first < keys.size(); first += kAttentionKeys) {
    const int count = min(kAttentionKeys, keys.size() - first);
    __syncthreads();
    if (threadIdx.x < count) {
      shared.rows[threadIdx.x] = FindRow(args, keys, token, first + static_cast<int>(threadIdx.x));
    }
    __syncthreads();
    ScoreKeys(args, count, scale, shared);
    const float before = largest;
    for (int key = 0; key < count; ++key) largest = fmaxf(largest, shared.scores[key]);
    const float rescale = expf(before - largest);
    denominator *= rescale;
    for (float& sum : sums) sum *= rescale;
    for (int key = 0; key < count; ++key) {
      const float p = expf(shared.scores[key] - largest);
      denominator += p;
      const float rounded = Bf16ToFloat(FloatToBf16(p));
      for (int i = 0; i < kDimsPerThread; ++i) {
        const int dim = threadIdx.x + i * kThreads;
        if (dim < args.head_dim) {
          sums[i] = fmaf(rounded, ElementOf(args, shared.rows[key], dim), sums[i]);
        }
      }
    }
  }
  denominator += expf(args.sink[head] - largest);
  StoreHead(args, token, head, sums, denominator, shared);
}

}  // namespace

void LaunchSparseAttentionPortable(const SparseAttentionArgs& args, cudaStream_t stream) {
  RequireArgument(args.head_dim <= kMaxDims, "LaunchSparseAttentionPortable",
                  "head_dim exceeds 1024", args.head_dim);
  RequireArgument(args.format != KvFormat::kF32, "LaunchSparseAttentionPortable",
                  "fp32 latents are for the CPU only", 0);
  const float scale = 1.0f / sqrtf(static_cast<float>(args.head_dim));
  SparseAttentionPortableKernel<<<static_cast<unsigned>(args.num_tokens * args.num_heads), kThreads,
                                  0, stream>>>(args, scale);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace lodestone::cuda

// RmsNorm, QueryNormRope, WindowLatent and StoreWindow: rows of activations, each normalised,
// rotated and rounded in shared memory by one team of threads. Bound by the bytes of the rows, read
// once and written once.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/row_store.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 128;          // of a block that has one row
constexpr int kWarpRows = 4;           // rows of a block that has one row per warp
constexpr int kMaxRowFloats = 8192;    // of a row, in shared memory: 32 KiB
constexpr int kMaxWarpFloats = 1024;   // the same, one row per warp

struct RmsNormArgs {
  const uint16_t* x;
  int64_t x_stride;
  const uint16_t* weight;
  uint16_t* out;
  int64_t out_stride;
  int n;
  float eps;
};

__global__ void RmsNormKernel(const __grid_constant__ RmsNormArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  LoadRow<kThreads>(args.x + blockIdx.x * args.x_stride, args.n, row);
  RmsNormRow<kThreads>(row, args.n, args.weight, args.eps);
  StoreRow<kThreads>(row, args.n, args.out + blockIdx.x * args.out_stride);
}

struct QueryNormRopeArgs {
  uint16_t* q;
  int64_t token_stride, head_stride;
  const int32_t* positions;
  const float* freqs;
  int64_t num_rows;  // T * H
  int num_heads, dims, num_pairs;
  float eps;
};

// The per-head norm of bf16 queries, rounded after every step as the vendor's tensors are.
template <int kTeam>
__device__ void NormHead(float* row, int n, float eps) {
  float sum = 0;
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) sum += RoundToBf16(row[i] * row[i]);
  sum = TeamSum<kTeam>(sum);
  const float mean = RoundToBf16(sum / static_cast<float>(n));
  const float factor = RoundToBf16(1.0f / sqrtf(RoundToBf16(mean + eps)));
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) row[i] = RoundToBf16(row[i] * factor);
  TeamSync<kTeam>();
}

__global__ void QueryNormRopeKernel(const __grid_constant__ QueryNormRopeArgs args) {
  extern __shared__ float rows[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / 32;
  if (index >= args.num_rows) return;
  const int64_t token = index / args.num_heads;
  float* const row = rows + static_cast<int>(threadIdx.x) / 32 * args.dims;
  uint16_t* const q = args.q + token * args.token_stride + index % args.num_heads * args.head_stride;
  LoadRow<32>(q, args.dims, row);
  NormHead<32>(row, args.dims, args.eps);
  RotateTail<32>(row, args.dims, args.num_pairs, args.positions[token], args.freqs);
  StoreRow<32>(row, args.dims, q);
}

struct WindowLatentArgs {
  const uint16_t* kv;
  int64_t kv_stride;
  const uint16_t* weight;
  const int32_t* positions;
  const float* freqs;
  uint16_t* latents;
  int64_t latents_stride;
  int dims, num_pairs;
  float eps;
  bool round_fp8;
};

__global__ void WindowLatentKernel(const __grid_constant__ WindowLatentArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  LoadRow<kThreads>(args.kv + token * args.kv_stride, args.dims, row);
  RmsNormRow<kThreads>(row, args.dims, args.weight, args.eps);
  RotateTail<kThreads>(row, args.dims, args.num_pairs, args.positions[token], args.freqs);
  if (args.round_fp8) RoundFp8Groups<kThreads>(row, args.dims - 2 * args.num_pairs);
  StoreRow<kThreads>(row, args.dims, args.latents + token * args.latents_stride);
}

struct StoreWindowArgs {
  const uint16_t* latents;
  int64_t latents_stride;
  const int32_t* positions;
  const int32_t* token_seq;
  const int32_t* seq_first;
  const int32_t* seq_tokens;
  const int32_t* seq_slot;
  WritableRows ring;
  int dims, rope_dims, window;
  KvFormat format;
};

__global__ void StoreWindowKernel(const __grid_constant__ StoreWindowArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int token = static_cast<int>(blockIdx.x);
  const int seq = args.token_seq[token];
  const int end = args.seq_first[seq] + args.seq_tokens[seq];
  if (token < end - args.window) return;  // a later token has the same ring row
  LoadRow<kThreads>(args.latents + token * args.latents_stride, args.dims, row);
  const int64_t slot = args.seq_slot[seq];
  const int64_t place = args.positions[token] % args.window;
  StoreLatentRow<kThreads>(args.format, row, args.dims, args.rope_dims,
                           args.ring.Payload(slot, place), args.ring.Scale(slot, place));
}

void RequireRow(const char* launcher, int64_t n, int64_t limit) {
  RequireArgument(n <= limit, launcher, "a row exceeds the shared memory it is given", n);
}

template <typename Args>
void LaunchRows(void (*kernel)(Args), const Args& args, int64_t rows, int64_t floats,
                cudaStream_t stream) {
  LaunchOverlapped(kernel,
                   {.blocks = rows, .threads = kThreads, .shared_bytes = static_cast<int>(floats * 4)},
                   stream, args);
}

}  // namespace

void LaunchRmsNorm(const RmsNormParams& p, cudaStream_t stream) {
  const int64_t n = p.x.shape[1];
  RequireRow("LaunchRmsNorm", n, kMaxRowFloats);
  LaunchRows(RmsNormKernel,
             RmsNormArgs{.x = p.x.as<uint16_t>(),
                         .x_stride = p.x.strides[0],
                         .weight = p.weight.as<uint16_t>(),
                         .out = p.out.as<uint16_t>(),
                         .out_stride = p.out.strides[0],
                         .n = static_cast<int>(n),
                         .eps = p.eps},
             p.x.shape[0], n, stream);
}

void LaunchQueryNormRope(const QueryNormRopeParams& p, cudaStream_t stream) {
  const int64_t dims = p.q.shape[2];
  RequireRow("LaunchQueryNormRope", dims, kMaxWarpFloats);
  const int64_t num_rows = p.q.shape[0] * p.q.shape[1];
  const QueryNormRopeArgs args = {.q = p.q.as<uint16_t>(),
                                  .token_stride = p.q.strides[0],
                                  .head_stride = p.q.strides[1],
                                  .positions = p.positions.as<int32_t>(),
                                  .freqs = p.freqs.as<float>(),
                                  .num_rows = num_rows,
                                  .num_heads = static_cast<int>(p.q.shape[1]),
                                  .dims = static_cast<int>(dims),
                                  .num_pairs = static_cast<int>(p.freqs.shape[0]),
                                  .eps = p.eps};
  LaunchRows(QueryNormRopeKernel, args, (num_rows + kWarpRows - 1) / kWarpRows, kWarpRows * dims,
             stream);
}

void LaunchWindowLatent(const WindowLatentParams& p, cudaStream_t stream) {
  const int64_t dims = p.kv.shape[1];
  RequireRow("LaunchWindowLatent", dims, kMaxRowFloats);
  LaunchRows(WindowLatentKernel,
             WindowLatentArgs{.kv = p.kv.as<uint16_t>(),
                              .kv_stride = p.kv.strides[0],
                              .weight = p.weight.as<uint16_t>(),
                              .positions = p.positions.as<int32_t>(),
                              .freqs = p.freqs.as<float>(),
                              .latents = p.latents.as<uint16_t>(),
                              .latents_stride = p.latents.strides[0],
                              .dims = static_cast<int>(dims),
                              .num_pairs = static_cast<int>(p.freqs.shape[0]),
                              .eps = p.eps,
                              .round_fp8 = p.round_fp8},
             p.kv.shape[0], dims, stream);
}

void LaunchStoreWindow(const StoreWindowParams& p, cudaStream_t stream) {
  const int64_t dims = p.latents.shape[1];
  RequireRow("LaunchStoreWindow", dims, kMaxRowFloats);
  LaunchRows(StoreWindowKernel,
             StoreWindowArgs{.latents = p.latents.as<uint16_t>(),
                             .latents_stride = p.latents.strides[0],
                             .positions = p.batch.positions.as<int32_t>(),
                             .token_seq = p.batch.token_seq.as<int32_t>(),
                             .seq_first = p.batch.seq_first.as<int32_t>(),
                             .seq_tokens = p.batch.seq_tokens.as<int32_t>(),
                             .seq_slot = p.batch.seq_slot.as<int32_t>(),
                             .ring = WritableRowsOf(p.ring),
                             .dims = static_cast<int>(dims),
                             .rope_dims = static_cast<int>(p.rope_dims),
                             .window = static_cast<int>(p.ring.payload.shape[1]),
                             .format = p.format},
             p.latents.shape[0], dims, stream);
}

}  // namespace lodestone::cuda

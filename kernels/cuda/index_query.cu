// Index queries (IndexQueryParams): one warp per head rotates, transforms and rounds its row in
// shared memory. Bound by the bytes of q, read and written once.

#include <cmath>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDims = 1024;

struct IndexQueryArgs {
  uint16_t* q;
  int64_t token_stride, head_stride;
  const uint16_t* raw_weight;
  int64_t raw_stride;
  const int32_t* positions;
  const float* freqs;
  float* weight;
  int64_t weight_stride;
  int64_t num_rows;  // T * H_i
  int num_heads, dims, num_pairs;
  float hadamard_factor;  // d_i^-1/2
  float weight_factor;    // (d_i * H_i)^-1/2
  IndexRounding rounding;
};

// By `rounding`, in place; the scale of the head under kFp8, else 1.
__device__ float RoundQuery(IndexRounding rounding, float* row, int n) {
  if (rounding == IndexRounding::kFp4) RoundFp4Groups<32>(row, n);
  if (rounding != IndexRounding::kFp8) return 1.0f;
  const float scale =
      QuantizeFp8Row<32>(row, n, [row](int i, uint8_t code) { row[i] = E4m3ToFloat(code); });
  __syncwarp();
  return scale;
}

__global__ void IndexQueryKernel(const __grid_constant__ IndexQueryArgs args) {
  extern __shared__ float rows[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= args.num_rows) return;
  const int64_t token = index / args.num_heads;
  const int64_t head = index % args.num_heads;
  float* const row = rows + static_cast<int>(threadIdx.x) / 32 * args.dims;
  uint16_t* const q = args.q + token * args.token_stride + head * args.head_stride;
  LoadRow<32>(q, args.dims, row);
  RotateTail<32>(row, args.dims, args.num_pairs, args.positions[token], args.freqs);
  HadamardRow<32>(row, args.dims, args.hadamard_factor);
  RoundRow<32>(row, args.dims);
  const float scale = RoundQuery(args.rounding, row, args.dims);
  StoreRow<32>(row, args.dims, q);
  if (threadIdx.x % 32 == 0) {
    const float raw = Bf16ToFloat(args.raw_weight[token * args.raw_stride + head]);
    args.weight[token * args.weight_stride + head] = RoundToBf16(raw * args.weight_factor) * scale;
  }
}

}  // namespace

void LaunchIndexQuery(const IndexQueryParams& p, cudaStream_t stream) {
  const int64_t heads = p.q.shape[1];
  const int64_t dims = p.q.shape[2];
  RequireArgument(dims <= kMaxDims, "LaunchIndexQuery", "dims exceed 1024", dims);
  const IndexQueryArgs args = {
      .q = p.q.as<uint16_t>(),
      .token_stride = p.q.strides[0],
      .head_stride = p.q.strides[1],
      .raw_weight = p.raw_weight.as<uint16_t>(),
      .raw_stride = p.raw_weight.strides[0],
      .positions = p.positions.as<int32_t>(),
      .freqs = p.freqs.as<float>(),
      .weight = p.weight.as<float>(),
      .weight_stride = p.weight.strides[0],
      .num_rows = p.q.shape[0] * heads,
      .num_heads = static_cast<int>(heads),
      .dims = static_cast<int>(dims),
      .num_pairs = static_cast<int>(p.freqs.shape[0]),
      .hadamard_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims))),
      .weight_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims * heads))),
      .rounding = p.rounding};
  LaunchOverlapped(IndexQueryKernel,
                   {.blocks = (args.num_rows + kWarps - 1) / kWarps,
                    .threads = kWarps * 32,
                    .shared_bytes = static_cast<int>(kWarps * dims * 4)},
                   stream, args);
}

}  // namespace lodestone::cuda

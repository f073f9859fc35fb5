// Linear (LinearParams) over the products of gemm.h.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"

namespace lodestone::cuda {

// Fewer rows at a time leave processors without a tile.
constexpr int64_t kMinOrderedBlock = 1024;

int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) {
  const bool wants = round_fp8 || num_tokens >= kMinOrderedRows;
  return wants ? num_tokens * k * static_cast<int64_t>(sizeof(uint16_t)) : 0;
}

bool RoundsInputs(const LinearParams& p) {
  return p.round_fp8 && p.weight.rounds_inputs && IsQuantised(p.weight.format);
}

namespace {

// Rows whose inputs scratch holds at a time.
int64_t ScratchRows(const LinearParams& p) {
  const int64_t row_bytes = p.x.shape[1] * static_cast<int64_t>(sizeof(uint16_t));
  return p.scratch.empty() ? 0 : p.scratch.num_bytes() / row_bytes;
}

// `count` rows from `first` on, their inputs by way of scratch.
void LaunchRows(const LinearParams& p, GemmArgs args, int64_t first, int64_t count,
                cudaStream_t stream) {
  auto* const inputs = p.scratch.as<uint16_t>();
  LaunchInputs({.x = args.x + first * args.x_stride,
                .x_stride = args.x_stride,
                .rows = count,
                .k = p.x.shape[1],
                .round = RoundsInputs(p),
                .ordered = args.ordered,
                .out = inputs},
               stream);
  args.x = inputs;
  args.x_stride = p.x.shape[1];
  args.rows = count;
  const int64_t out_bytes = args.out_f32 ? sizeof(float) : sizeof(uint16_t);
  args.out = static_cast<uint8_t*>(args.out) + first * args.out_stride * out_bytes;
  LaunchGemm(args, stream);
}

}  // namespace

void LaunchLinear(const LinearParams& p, cudaStream_t stream) {
  RequireArgument(p.weight.format != WeightFormat::kF32, "LaunchLinear",
                  "fp32 weights are for the mixing of streams only", p.weight.n);
  RequireArgument(!(RoundsInputs(p) && p.weight.groups > 1), "LaunchLinear",
                  "a grouped product rounds its inputs", p.weight.groups);
  GemmArgs args = {.x = p.x.as<uint16_t>(),
                   .x_stride = p.x.strides[0],
                   .rows = p.x.shape[0],
                   .weight = {GemmWeightOf(p.weight)},
                   .format = p.weight.format,
                   .parts = static_cast<int>(p.weight.groups),
                   .grouped = p.weight.groups > 1,
                   .n = p.weight.n,
                   .k = p.weight.k,
                   .out = p.out.data,
                   .out_stride = p.out.strides[0],
                   .out_f32 = p.out.dtype == DType::kF32};
  // A grouped product's inputs may be more than scratch was made for.
  const int64_t block = std::min(args.rows, ScratchRows(p));
  args.ordered = TakesOrderedInputs(args) && block >= std::min(args.rows, kMinOrderedBlock);
  if (!args.ordered && !RoundsInputs(p)) return LaunchGemm(args, stream);
  RequireArgument(block > 0 || args.rows == 0, "LaunchLinear",
                  "scratch does not hold the inputs of one row", p.x.shape[1]);
  for (int64_t first = 0; first < args.rows; first += block) {
    LaunchRows(p, args, first, std::min(block, args.rows - first), stream);
  }
}

}  // namespace lodestone::cuda

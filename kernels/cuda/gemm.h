#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/weight_format.h"

// Products out = x weight^T, sums in fp32 (kernels/cuda/gemm.cu). FP8 and FP4 weights stay in
// memory as the checkpoint has them and are widened to bf16 on their way to the tensor cores, which
// is exact (three bits of mantissa, scales that are powers of two); so is Q8(x) in bf16, which
// LaunchInputs makes ahead of a product that wants it.
//
// The value of an output depends on its row of x and its row of the weight only, to the bit: inputs
// are cut into slices whose number and length follow from the weight's shape alone, each is summed
// in one fixed order, and the slices are added in order. So neither the batch nor the tile matters,
// and a decode step gives what a prefill gives; and a matrix gives the same in every form that
// holds its values.
namespace lodestone::cuda {

// A matrix [n, k] in device memory, row-major.
struct GemmWeight {
  const uint8_t* values = nullptr;  // bf16, e4m3 codes, or e2m1 pairs
  const uint8_t* scales = nullptr;  // E8M0 codes [ScaleRows, ScaleColumns]; null for bf16
};

// Rows [first, first + count) of the order by expert; `expert` is num_experts for the shared one.
struct ExpertTile {
  int32_t expert;
  int32_t first;
  int32_t count;
};

struct GemmArgs {
  const uint16_t* x = nullptr;  // bf16 [rows, parts * k], or [.., k] for experts
  int64_t x_stride = 0;         // elements
  int64_t rows = 0;             // of the output
  // `parts` products of n outputs each, side by side in `out`: groups of a grouped product, which
  // have k inputs each, or matrices over the same inputs.
  GemmWeight weight[2] = {};  // [n, k] of each part; grouped: [parts * n, k] in weight[0]
  WeightFormat format = WeightFormat::kBf16;  // not kF32
  int parts = 1;
  bool grouped = false;
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 8; of 32 under kFp4
  void* out = nullptr;     // [rows, parts * n]
  int64_t out_stride = 0;  // elements
  bool out_f32 = false;    // else bf16
  // The 16 words (of two inputs) of every 32 inputs of x are transposed, word 4 a + b being x's
  // word 4 b + a, as products of many rows take them. REQUIRES: TakesOrderedInputs, whatever the
  // number of rows.
  bool ordered = false;

  // Experts: tile i of the output's rows is tiles[i], i < *num_tiles <= max_tiles, none longer than
  // tile_rows (16, 32, 64 or 128); expert e's matrices lie e * expert_stride bytes behind weight[];
  // row r of the output is made of row x_rows[r] of x.
  const ExpertTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int64_t max_tiles = 0;
  int tile_rows = 0;
  int64_t expert_stride = 0;
  int num_experts = 0;
  bool of_experts = false;  // of these, or of the shared one by itself: the same slices
  GemmWeight shared_weight[2] = {};  // where tiles name the shared expert; of the same format
  const int32_t* x_rows = nullptr;   // null: row r itself
};
void LaunchGemm(const GemmArgs& args, cudaStream_t stream);

// Whether the product is faster with ordered inputs, the time to order them included. Its bits are
// the same.
bool TakesOrderedInputs(const GemmArgs& args);
// The least rows with which it may be.
inline constexpr int64_t kMinOrderedRows = 128;

// Inputs of products ahead of them: once, where a product would do it once a tile of its outputs.
struct InputsArgs {
  const uint16_t* x = nullptr;  // bf16
  int64_t x_stride = 0;         // elements
  int64_t rows = 0;
  int64_t k = 0;            // a multiple of 8; of 32 if ordered
  bool round = false;       // Q8 (spec 4.2) in groups of 128 inputs, in bf16: exact
  bool ordered = false;     // as GemmArgs.ordered asks; one of both or both
  uint16_t* out = nullptr;  // [rows, k]
};
void LaunchInputs(const InputsArgs& args, cudaStream_t stream);

// Slices of the inputs, one a warp where there are few rows: more where sums are long and there are
// too few outputs for the blocks of a processor to hide each other's loads.
inline constexpr int kFewSlices = 8;
inline constexpr int kManySlices = 16;
inline int NumSumSlices(const GemmArgs& args) {
  const bool many = args.k >= 2048 && args.n * args.parts <= 4096 && !args.of_experts;
  return many ? kManySlices : kFewSlices;
}

}  // namespace lodestone::cuda

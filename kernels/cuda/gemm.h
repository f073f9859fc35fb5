#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Products with bf16 weights, out = x weight^T, sums in fp32 (kernels/cuda/gemm.cu). FP8 and FP4
// weights are widened to bf16 when they are packed, which is exact; so is Q8(x) in bf16.
//
// The value of an output depends on its row of x and its row of the weight only, to the bit: inputs
// are cut into kSumSlices slices whose length follows from k alone, each is summed in one fixed
// order, and the slices are added in order. So neither the batch nor the tile matters, and a decode
// step gives what a prefill gives.
namespace lodestone::cuda {

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
  const uint16_t* weight[2] = {};  // [n, k] of each part; grouped: [parts * n, k] in weight[0]
  int parts = 1;
  bool grouped = false;
  int64_t n = 0;
  int64_t k = 0;  // a multiple of 8
  bool round_fp8 = false;  // x passes through Q8 in groups of 128 inputs first; not with `grouped`
  void* out = nullptr;
  int64_t out_stride = 0;  // elements
  bool out_f32 = false;    // else bf16

  // Experts: tile i of the output's rows is tiles[i], i < *num_tiles <= max_tiles, none longer than
  // tile_rows (16, 32, 64 or 128); expert e's matrices lie e * expert_stride elements behind weight[];
  // row r of the output is made of row x_rows[r] of x.
  const ExpertTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int64_t max_tiles = 0;
  int tile_rows = 0;
  int64_t expert_stride = 0;
  int num_experts = 0;
  const uint16_t* shared_weight[2] = {};
  const int32_t* x_rows = nullptr;  // null: row r itself
};
void LaunchGemm(const GemmArgs& args, cudaStream_t stream);

inline constexpr int kSumSlices = 8;

}  // namespace lodestone::cuda

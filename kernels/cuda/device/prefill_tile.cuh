#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/attention_products.cuh"
#include "kernels/cuda/sparse_attention.h"

// What the warpgroups of sparse_attention_prefill.cu share. An item is one token and 64 heads.
namespace lodestone::cuda {

struct PrefillTile {
  static constexpr int kHeads = kAttentionHeads;
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kRopeDims = kAttentionRopeDims;  // the last: the third warpgroup's
  static constexpr int kStages = 3;
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 4 * kGroupThreads;
  static constexpr int kSlices = kDims / 64;  // of 64 dims: 128 bytes a row
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kSharedSlices = kSlices - kQueryRegisterSlices;  // of the queries
  static constexpr int kGatherWarps = 3;                                // the fourth lists
  static constexpr int kRowsAtOnce = 4;  // of a warp: 128 bytes of each
  static constexpr int kListSteps = 2;   // how far the listing warp is ahead
  // Registers of a thread: 65,536 a processor.
  static constexpr int kScoreRegisters = 160;
  static constexpr int kValueRegisters = 160;
  static constexpr int kLoadRegisters = 32;
  static_assert(kScoreRegisters + 2 * kValueRegisters + kLoadRegisters == 512);
  static_assert(kHeads == 64 && kKeys == 64, "rows of queries, keys and probabilities");
  static_assert(kSlices == kLatentSlices && kSliceBytes == kLatentSliceBytes);
};

// Rows are swizzled as device/wgmma.cuh describes.
struct alignas(1024) PrefillShared {
  uint8_t stages[PrefillTile::kStages][PrefillTile::kSlices]
                [PrefillTile::kSliceBytes];    // keys, or what of the queries goes to registers
  uint8_t probs[2][PrefillTile::kSliceBytes];  // bf16 [heads][keys] of steps in turn
  uint8_t query[PrefillTile::kSharedSlices][PrefillTile::kSliceBytes];
  // Of the listed steps: where the rows of their keys are, and how many keys there are, negative in
  // an item's last step.
  const uint8_t* rows[PrefillTile::kListSteps][PrefillTile::kKeys];
  int listed[PrefillTile::kListSteps];
  int first_own[PrefillTile::kListSteps];  // see FindOwnRows
  int keys[PrefillTile::kStages];          // the same of the step in a stage
  float2 angles[2][PrefillTile::kRopeDims / 2];
  float rescale[2][PrefillTile::kHeads];  // factors of the sums before these steps
  float factor[2][PrefillTile::kHeads];   // with an item's last step: factors of the sums
  uint64_t full[PrefillTile::kStages];
  uint64_t empty[PrefillTile::kStages];
  uint64_t list_full[PrefillTile::kListSteps];
  uint64_t list_empty[PrefillTile::kListSteps];
  uint64_t angles_full[2];
  uint64_t angles_empty[2];
  uint64_t query_full;
  uint64_t dealt_full;
  int dealt_item;  // this block's of those that are dealt, or -1
};
static_assert(sizeof(PrefillShared) <= 227 * 1024);

// Barriers between the warpgroups of scores and of values, all of whose threads take part; two of
// each, for steps in turn.
enum PrefillBarrier : int {
  kScoreGroup = 1,   // among the first warpgroup
  kStepPassed = 2,   // a step's probabilities are there
  kStepSummed = 4,   // and have been used
  kStepAllowed = 6,  // the tensor cores are free for a step's values
};
inline constexpr int kPrefillComputeThreads = 3 * PrefillTile::kGroupThreads;

struct PrefillMaps {
  CUtensorMap queries;  // boxes of 64 dims x 64 heads
  CUtensorMap latents;  // of the whole batch: boxes of 64 dims x 64 tokens
};

// The keys of the step in a full stage, for all lanes of a warp; read by the lane that leaves the
// stage for the warp.
__device__ inline int StepKeys(const PrefillShared& shared, int stage) {
  int keys = 0;
  if (threadIdx.x % 32 == 0) keys = shared.keys[stage];
  return __shfl_sync(~0u, keys, 0);
}

// Heads of one token are neighbours.
struct PrefillItem {
  int token;
  int head;  // first
};
__host__ __device__ inline int PrefillHeadGroups(const SparseAttentionArgs& args) {
  return static_cast<int>((args.num_heads + PrefillTile::kHeads - 1) / PrefillTile::kHeads);
}
__host__ __device__ inline int NumPrefillItems(const SparseAttentionArgs& args) {
  return static_cast<int>(args.num_tokens) * PrefillHeadGroups(args);
}

// Each block has `whole` items; the `rest` are dealt: the blocks that get there first take one
// each.
struct PrefillShare {
  int whole;
  int rest;
  int ticket_word;  // which counts the dealt items; -1: the first blocks take them
};
// The number of the block's item of a turn; -1: there is none.
__device__ inline int PrefillNumberOf(const PrefillShare& share, int turn, PrefillShared& shared) {
  if (turn < share.whole) return static_cast<int>(blockIdx.x + turn * gridDim.x);
  if (turn > share.whole || share.rest == 0) return -1;
  BarrierWait(&shared.dealt_full, 0);
  return shared.dealt_item;
}

__device__ inline PrefillItem PrefillItemOf(const SparseAttentionArgs& args, int number) {
  const int head_groups = PrefillHeadGroups(args);
  return {.token = number / head_groups, .head = number % head_groups * PrefillTile::kHeads};
}

}  // namespace lodestone::cuda

#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/attention_products.cuh"
#include "kernels/cuda/sparse_attention.h"

// What the warpgroups of sparse_attention_blocks.cu share: an item is one token, 64 heads, one
// split of its keys.
namespace lodestone::cuda {

struct AttentionTile {
  static constexpr int kHeads = kAttentionHeads;
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kStages = 3;
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 4 * kGroupThreads;
  static constexpr int kSlices = kDims / 64;  // of 64 dims: 128 bytes a row
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kStageBytes = kSlices * kSliceBytes;
  static constexpr int kRopeDims = kAttentionRopeDims;  // the last: the third warpgroup's
  static constexpr int kGatherWarps = 3;                // the fourth lists
  static constexpr int kRowsAtOnce = 4;                 // of a warp: 128 bytes of each
  static constexpr int kEntriesAtOnce = 8;              // by each lane of the listing warp
  // Registers of a thread: 65,536 a processor.
  static constexpr int kScoreRegisters = 160;
  static constexpr int kValueRegisters = 160;
  static constexpr int kLoadRegisters = 32;
  static_assert(kScoreRegisters + 2 * kValueRegisters + kLoadRegisters == 512);
  static_assert(kHeads == 64 && kKeys == 64, "rows of queries, keys and probabilities");
  static_assert(kSlices == kLatentSlices && kSliceBytes == kLatentSliceBytes);
  static_assert(kGatherWarps + 1 == kGroupThreads / 32);
};
// An item has all entries that ratio 4 chose, or those of one split under ratio 128.
inline constexpr int kMaxItemEntries = 1152;
static_assert(kMaxItemEntries >= kMaxTopK);

// What the listing warp finds out about an item.
struct ItemList {
  TokenKeys keys;  // under ratio 4 without the entries
  int num_chosen;  // ratio 4: entries
  float2 angles[AttentionTile::kRopeDims / 2];
  float sink[AttentionTile::kHeads];  // of the item's heads
  // Where the rows of this item's entries begin, in units of 16 bytes.
  uint32_t entry_offsets[kMaxItemEntries];
};

// Rows are swizzled as device/wgmma.cuh describes.
struct alignas(1024) AttentionShared {
  uint8_t stages[AttentionTile::kStages][AttentionTile::kSlices]
                [AttentionTile::kSliceBytes];  // keys or queries
  uint8_t probs[AttentionTile::kSliceBytes];   // bf16 [heads][keys]
  uint8_t query[AttentionTile::kSlices - kQueryRegisterSlices][AttentionTile::kSliceBytes];
  ItemList lists[2];
  float rescale[AttentionTile::kHeads];  // factor of the sums before this step
  float inverse[AttentionTile::kHeads];  // with an item's last step: 1 / denominator
  uint64_t full[AttentionTile::kStages];
  uint64_t empty[AttentionTile::kStages];
  uint64_t keys_found[2];  // all of a list but what depends on top_entries
  uint64_t list_full[2];
  uint64_t list_empty[2];
};
static_assert(sizeof(AttentionShared) <= 227 * 1024);

// Barriers between the warpgroups of scores and of values, all of whose threads take part.
enum NamedBarrier : int {
  kQueryTaken = 1,  // among the first warpgroup
  kProbsFull = 2,
  kProbsEmpty = 3,
  kScored = 4,  // and 5, in turn: a step's scores are there
  kSummed = 6,  // and 7, among each warpgroup of values: all its warps' sums are there
};
inline constexpr int kComputeThreads = 3 * AttentionTile::kGroupThreads;

// What the L2 cache does with what is read (device/async_copy.cuh).
struct AttentionPolicies {
  uint64_t keys;
  uint64_t queries;
};

// Items of one token are neighbours: its head groups, and the splits of each.
struct AttentionItem {
  int token;
  int head;  // first
  int split;
};
__host__ __device__ inline int64_t HeadGroups(const SparseAttentionArgs& args) {
  return (args.num_heads + AttentionTile::kHeads - 1) / AttentionTile::kHeads;
}
__device__ inline int NumItems(const SparseAttentionArgs& args, int splits) {
  return static_cast<int>(args.num_tokens * HeadGroups(args)) * splits;
}
__device__ inline AttentionItem ItemOf(const SparseAttentionArgs& args, int splits, int number) {
  const int head_groups = static_cast<int>(HeadGroups(args));
  return {.token = number / splits / head_groups,
          .head = number / splits % head_groups * AttentionTile::kHeads,
          .split = number % splits};
}
__device__ inline int64_t PartialPlane(const AttentionItem& item, int splits) {
  return int64_t{item.token} * splits + item.split;
}

// The keys an item attends to, as far as they are known: whole steps of the window at first.
struct ItemSteps {
  int step;
  int end_step;
  int num_keys;
  bool listed;  // all are known
};
__device__ inline void CutSteps(const AttentionSplits& split, int split_number, int num_keys,
                                ItemSteps& steps) {
  const int all = (num_keys + AttentionTile::kKeys - 1) / AttentionTile::kKeys;
  const int first = min(split_number * split.steps_per_split, all);
  if (split.splits > 1) steps.step = max(steps.step, first);
  steps.end_step = split_number + 1 == split.splits ? all : min(first + split.steps_per_split, all);
  steps.num_keys = num_keys;
}

// Waits until all keys of an item are known.
__device__ inline void CompleteSteps(const SparseAttentionArgs& args, const AttentionSplits& split,
                                     int number, const RingStage<2>& slot, AttentionShared& shared,
                                     ItemSteps& steps) {
  const ItemList& list = shared.lists[slot.index];
  BarrierWait(&shared.list_full[slot.index], slot.parity);
  int num_keys = list.keys.size();
  if (args.ratio == 4) num_keys += list.num_chosen;
  CutSteps(split, number % split.splits, num_keys, steps);
  steps.listed = true;
}
// Waits until enough is known to begin.
__device__ inline ItemSteps BeginSteps(const SparseAttentionArgs& args,
                                       const AttentionSplits& split, int number,
                                       const RingStage<2>& slot, AttentionShared& shared) {
  BarrierWait(&shared.keys_found[slot.index], slot.parity);
  const int num_window = shared.lists[slot.index].keys.num_window;
  ItemSteps steps = {.step = 0,
                     .end_step = num_window / AttentionTile::kKeys,
                     .num_keys = num_window,
                     .listed = false};
  if (split.splits > 1 || steps.end_step == 0) {
    CompleteSteps(args, split, number, slot, shared, steps);
  }
  return steps;
}

}  // namespace lodestone::cuda

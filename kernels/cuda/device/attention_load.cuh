#pragma once

#include "kernels/cuda/device/attention_items.cuh"

// The loading warps of sparse_attention_blocks.cu: two list the rows of an item's keys, two gather.
namespace lodestone::cuda {

// Chosen entries (ratio 4), then the pages that hold them, of one part of the list; lane l has
// entries l + 32 i.
struct ChosenPart {
  int32_t entries[AttentionTile::kEntriesAtOnce];
  int32_t pages[AttentionTile::kEntriesAtOnce];
};
__device__ inline void LoadChosen(const SparseAttentionArgs& args, int token, int first,
                                  ChosenPart& part) {
#pragma unroll
  for (int i = 0; i < AttentionTile::kEntriesAtOnce; ++i) {
    const int at = first + 32 * i + static_cast<int>(threadIdx.x % 32);
    part.entries[i] = at < args.k ? args.top_entries[int64_t{token} * args.k + at] : -1;
  }
}
__device__ inline void LoadPages(const int32_t* pages, ChosenPart& part) {
#pragma unroll
  for (int i = 0; i < AttentionTile::kEntriesAtOnce; ++i) {
    part.pages[i] = part.entries[i] >= 0 ? pages[part.entries[i] / 64] : 0;
  }
}
// Lists them and returns their number.
__device__ inline int ListChosen(const SparseAttentionArgs& args, int first, const ChosenPart& part,
                                 ItemList& list) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < AttentionTile::kEntriesAtOnce; ++i) {
    const int entry = part.entries[i];
    count += __popc(__ballot_sync(~0u, entry >= 0));
    if (entry < 0) continue;
    const int64_t offset =
        part.pages[i] * args.entries.payload_block_stride + entry % 64 * kLatentBytes;
    list.entry_offsets[first + 32 * i + threadIdx.x % 32] = static_cast<uint32_t>(offset / 16);
  }
  return count;
}

// A listing warp (of `part` 0 or 1): what to load and compute for every item. The loads that lead
// to the entries' rows are queued before any key is: behind keys they take several times as long.
__device__ inline void ListItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 int part, AttentionShared& shared) {
  constexpr int kPartEntries = 32 * AttentionTile::kEntriesAtOnce;
  const int lane = static_cast<int>(threadIdx.x % 32);
  RingStage<2> slot;
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    const AttentionItem item = ItemOf(args, split.splits, number);
    ItemList& list = shared.lists[slot.index];
    const bool first_item = number == static_cast<int>(blockIdx.x);
    TokenKeys keys;
    if (first_item) {  // no kernel writes what tells a token's keys, but for the chosen ones
      keys = FindKeys(args, item.token);
      WaitForPreviousKernel();
    }
    ChosenPart chosen;
    if (args.ratio == 4) LoadChosen(args, item.token, part * kPartEntries, chosen);
    const int32_t* const pages = args.block_table + args.token_seq[item.token] * args.max_pages;
    if (args.ratio == 4) LoadPages(pages, chosen);
    if (!first_item) keys = FindKeys(args, item.token);
    BarrierWait(&shared.list_empty[slot.index], slot.parity ^ 1);
    if (part == 0 && lane == 0) {
      list.keys = keys;
      BarrierArrive(&shared.keys_found[slot.index]);
    }
    if (args.ratio == 4) {
      int count = 0;
      for (int first = part * kPartEntries; first < args.k;) {
        count += ListChosen(args, first, chosen, list);
        first += AttentionTile::kListWarps * kPartEntries;
        if (first >= args.k) break;
        LoadChosen(args, item.token, first, chosen);
        LoadPages(pages, chosen);
      }
      if (lane == 0) list.num_chosen[part] = count;
    } else if (args.ratio == 128) {
      ItemSteps steps = {};
      CutSteps(split, item.split, keys.size(), steps);
      const int begin = max(steps.step * AttentionTile::kKeys - keys.num_window, 0);
      const int end =
          min(steps.end_step * AttentionTile::kKeys - keys.num_window, keys.num_entries);
#pragma unroll 4
      for (int i = 32 * part + lane; begin + i < end; i += 32 * AttentionTile::kListWarps) {
        list.entry_offsets[i] =
            static_cast<uint32_t>(EntryLatentOffset(args, pages, begin + i) / 16);
      }
    }
    if (part == 1) list.angles[lane] = RopeAngle(keys.position, args.freqs[lane]);
    __syncwarp();
    if (lane == 0) BarrierArrive(&shared.list_full[slot.index]);
    slot.Advance();
  }
}

// The bytes of key `index` of the list; `first_entry` is the entry of entry_offsets[0].
__device__ inline const uint8_t* FindRow(const SparseAttentionArgs& args, const ItemList& list,
                                         int first_entry, int index) {
  if (index < list.keys.num_window) return FindWindowLatent(args, list.keys, index);
  return args.entries.payload +
         uint64_t{16} * list.entry_offsets[index - list.keys.num_window - first_entry];
}

// The keys of one step to a stage. Where there is none, the step's first takes its place; its
// probability is 0. Thread t has bytes 16 (t % 8) .. + 15 of all slices of rows t / 8 + 8 i.
__device__ inline void CopyKeys(const SparseAttentionArgs& args, const ItemList& list,
                                int first_entry, const ItemSteps& steps, uint64_t policy,
                                uint8_t* stage) {
  const int thread = threadIdx.x % AttentionTile::kGroupThreads;
  const int first_row = thread / 8;
  const int first_key = steps.step * AttentionTile::kKeys;
  const uint32_t to = SharedAddress(stage) + first_row * 128 + (thread % 8 ^ first_row) * 16;
#pragma unroll 2
  for (int i = 0; i < AttentionTile::kKeys / AttentionTile::kRowsAtOnce; ++i) {
    const int index = first_key + first_row + i * AttentionTile::kRowsAtOnce;
    const uint8_t* const row =
        FindRow(args, list, first_entry, index < steps.num_keys ? index : first_key);
    CopyLatentSlices(row + thread % 8 * 16, to + i * AttentionTile::kRowsAtOnce * 128, policy);
  }
}

// The queries of an item to a stage, by all gathering threads.
__device__ inline void CopyQuery(const AttentionMaps& maps, const AttentionItem& item, int stage,
                                 AttentionShared& shared) {
  if (threadIdx.x % AttentionTile::kGroupThreads != 0) {
    BarrierArrive(&shared.full[stage]);
    return;
  }
  BarrierArriveExpect(&shared.full[stage], AttentionTile::kStageBytes);
  for (int i = 0; i < AttentionTile::kSlices; ++i) {
    CopyBox3Once(shared.stages[stage][i], &maps.query, &shared.full[stage], i * 64, item.head,
                 item.token);
  }
}

// The gathering warps: for each item its queries, then the keys of all steps.
__device__ inline void GatherItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                   const AttentionMaps& maps, uint64_t policy,
                                   AttentionShared& shared) {
  WaitForPreviousKernel();
  RingStage<2> slot;
  RingStage<AttentionTile::kStages> stage;
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    const ItemList& list = shared.lists[slot.index];
    // A single split is never empty: a token attends to itself.
    ItemSteps steps = {};
    if (split.splits > 1) steps = BeginSteps(args, split, number, slot, shared);
    if (split.splits == 1 || steps.step < steps.end_step) {
      BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
      CopyQuery(maps, ItemOf(args, split.splits, number), stage.index, shared);
      stage.Advance();
    }
    if (split.splits == 1) steps = BeginSteps(args, split, number, slot, shared);
    const int first_entry =
        args.ratio == 128 ? max(steps.step * AttentionTile::kKeys - list.keys.num_window, 0) : 0;
    while (steps.step < steps.end_step) {
      BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
      CopyKeys(args, list, first_entry, steps, policy, shared.stages[stage.index][0]);
      CopyAsyncArrive(&shared.full[stage.index]);
      stage.Advance();
      if (++steps.step == steps.end_step && !steps.listed) {
        CompleteSteps(args, split, number, slot, shared, steps);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(&shared.list_empty[slot.index]);
    slot.Advance();
  }
}

}  // namespace lodestone::cuda

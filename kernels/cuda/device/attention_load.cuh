#pragma once

#include "kernels/cuda/device/attention_items.cuh"

// The loading warps of sparse_attention_blocks.cu: three gather keys, one lists their rows.
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

// Ratio 128: the rows of a split's entries, by kListThreads threads.
template <int kListThreads>
__device__ inline void ListSplit(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 int split_number, const TokenKeys& keys, ItemList& list) {
  const int32_t* const pages = args.block_table + keys.seq * args.max_pages;
  ItemSteps steps = {};
  CutSteps(split, split_number, keys.size(), steps);
  const int begin = max(steps.step * AttentionTile::kKeys - keys.num_window, 0);
  const int end = min(steps.end_step * AttentionTile::kKeys - keys.num_window, keys.num_entries);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kListThreads; begin + i < end; i += kListThreads) {
    list.entry_offsets[i] = static_cast<uint32_t>(EntryLatentOffset(args, pages, begin + i) / 16);
  }
}

// The entries of a block's first item, by the computing warpgroups, which have nothing else to do
// yet. `keys` is what FindKeys gave; list.keys is there, list.num_chosen 0. All arrive at
// `list_full`.
__device__ inline void ListFirstItem(const SparseAttentionArgs& args, const AttentionSplits& split,
                                     const AttentionItem& item, const TokenKeys& keys,
                                     ItemList& list, uint64_t* list_full) {
  constexpr int kEntriesEach = (kMaxTopK + kComputeThreads - 1) / kComputeThreads;
  const int thread = static_cast<int>(threadIdx.x);
  if (args.ratio == 4) {
    const int32_t* const pages = args.block_table + keys.seq * args.max_pages;
    int32_t entries[kEntriesEach];
#pragma unroll
    for (int i = 0; i < kEntriesEach; ++i) {
      const int at = thread + i * kComputeThreads;
      entries[i] = at < args.k ? args.top_entries[int64_t{item.token} * args.k + at] : -1;
    }
    int count = 0;
#pragma unroll
    for (int i = 0; i < kEntriesEach; ++i) {
      if (entries[i] >= 0) {
        list.entry_offsets[thread + i * kComputeThreads] =
            static_cast<uint32_t>(EntryLatentOffset(args, pages, entries[i]) / 16);
      }
      count += __popc(__ballot_sync(~0u, entries[i] >= 0));
    }
    if (thread % 32 == 0) atomicAdd(&list.num_chosen, count);
  } else if (args.ratio == 128) {
    ListSplit<kComputeThreads>(args, split, item.split, keys, list);
  }
  BarrierArrive(list_full);
}

// The queries of an item to a stage, and one arrival there. By one thread.
__device__ inline void CopyQueryBox(const CUtensorMap& query_map, const AttentionItem& item,
                                    uint64_t policy, int stage, AttentionShared& shared) {
  BarrierArriveExpect(&shared.full[stage], AttentionTile::kStageBytes);
  CopyBox4With(policy, shared.stages[stage], &query_map, &shared.full[stage], 0, item.head, 0,
               item.token);
}

// The sinks of an item's heads, by the listing warp.
__device__ inline void ListSinks(const SparseAttentionArgs& args, const AttentionItem& item,
                                 ItemList& list) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x % 32); i < AttentionTile::kHeads; i += 32) {
    list.sink[i] = item.head + i < args.num_heads ? args.sink[item.head + i] : 0;
  }
}

// What is left to do for a block's first item, once the kernel ahead has ended: its queries, at
// once, ahead of all keys but those of CopyOldKeys. By the listing warp.
__device__ inline void BeginFirstItem(const SparseAttentionArgs& args, const AttentionSplits& split,
                                      const CUtensorMap& query_map, const AttentionPolicies& policy,
                                      AttentionShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const AttentionItem item = ItemOf(args, split.splits, static_cast<int>(blockIdx.x));
  ItemList& list = shared.lists[0];
  ListSinks(args, item, list);
  list.angles[lane] = RopeAngle(list.keys.position, args.freqs[lane]);
  WaitForPreviousKernel();
  if (lane == 0) {
    if (split.splits == 1) CopyQueryBox(query_map, item, policy.queries, 0, shared);
    BarrierArrive(&shared.keys_found[0]);
  }
  BarrierArrive(&shared.list_full[0]);
}

// The listing warp: what to load and compute for every item but the first. The loads that lead to
// the entries' rows are queued before any key of the item is: behind keys they take several times
// as long.
__device__ inline void ListItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 AttentionShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  RingStage<2> slot;
  slot.Advance();
  for (int number = blockIdx.x + gridDim.x; number < NumItems(args, split.splits);
       number += gridDim.x) {
    const AttentionItem item = ItemOf(args, split.splits, number);
    ItemList& list = shared.lists[slot.index];
    ChosenPart chosen;
    if (args.ratio == 4) LoadChosen(args, item.token, 0, chosen);
    const int32_t* const pages = args.block_table + args.token_seq[item.token] * args.max_pages;
    if (args.ratio == 4) LoadPages(pages, chosen);
    const TokenKeys keys = FindKeys(args, item.token);
    BarrierWait(&shared.list_empty[slot.index], slot.parity ^ 1);
    if (lane == 0) {
      list.keys = keys;
      BarrierArrive(&shared.keys_found[slot.index]);
    }
    if (args.ratio == 4) {
      int count = 0;
      for (int first = 0; first < args.k;) {
        count += ListChosen(args, first, chosen, list);
        first += 32 * AttentionTile::kEntriesAtOnce;
        if (first >= args.k) break;
        LoadChosen(args, item.token, first, chosen);
        LoadPages(pages, chosen);
      }
      if (lane == 0) list.num_chosen = count;
    } else if (args.ratio == 128) {
      ListSplit<32>(args, split, item.split, keys, list);
    }
    ListSinks(args, item, list);
    list.angles[lane] = RopeAngle(keys.position, args.freqs[lane]);
    if (lane == 0) BarrierArrive(&shared.list_full[slot.index], kComputeThreads);
    BarrierArrive(&shared.list_full[slot.index]);
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

// 16 bytes of all slices of the latent at `from` to row `row` of a stage.
__device__ inline void CopyLatent(const uint8_t* from, int row, int unit, uint64_t policy,
                                  uint8_t* stage) {
  CopyLatentSlices(from + unit * 16, SharedAddress(stage) + row * 128 + (unit ^ row % 8) * 16,
                   policy);
}

// The keys of one step to a stage, but none with number `end_row` or above. Where there is none,
// the step's first takes its place; its probability is 0. The gathering warps take turns with
// groups of 4 rows; lane l has bytes 16 (l % 8) .. + 15 of all slices of row l / 8 of a group.
__device__ inline void CopyKeys(const SparseAttentionArgs& args, const ItemList& list,
                                int first_entry, const ItemSteps& steps, int end_row,
                                uint64_t policy, uint8_t* stage) {
  const int warp = threadIdx.x % AttentionTile::kGroupThreads / 32;
  const int unit = threadIdx.x % 8;
  const int first_key = steps.step * AttentionTile::kKeys;
#pragma unroll 2
  for (int row = warp * AttentionTile::kRowsAtOnce + threadIdx.x % 32 / 8; row < end_row;
       row += AttentionTile::kGatherWarps * AttentionTile::kRowsAtOnce) {
    const int index = first_key + row;
    const uint8_t* const from =
        FindRow(args, list, first_entry, index < steps.num_keys ? index : first_key);
    CopyLatent(from, row, unit, policy, stage);
  }
}

// The gathering threads' part in the arrival of an item's queries. `begun`: BeginFirstItem has
// queued them.
__device__ inline void CopyQuery(const CUtensorMap& query_map, const AttentionItem& item,
                                 uint64_t policy, bool begun, int stage, AttentionShared& shared) {
  if (threadIdx.x % AttentionTile::kGroupThreads != 0) {
    BarrierArrive(&shared.full[stage]);
  } else if (!begun) {
    CopyQueryBox(query_map, item, policy, stage, shared);
  }
}

// Begins with the older rows of the first item's window, as many whole steps as there are stages
// besides that of the queries; their number.
__device__ inline int CopyOldKeys(const SparseAttentionArgs& args, const AttentionSplits& split,
                                  uint64_t policy, AttentionShared& shared) {
  if (!args.old_rows || split.splits > 1) return 0;
  const ItemList& list = shared.lists[0];
  const int whole_steps = list.keys.num_window / AttentionTile::kKeys;
  const int end_step = min(whole_steps, AttentionTile::kStages - 1);
  const int own = list.keys.num_window - 1;  // the token's own latent is new
  for (int step = 0; step < end_step; ++step) {
    const int end_row = min(own - step * AttentionTile::kKeys, AttentionTile::kKeys);
    CopyKeys(args, list, 0, {.step = step, .num_keys = own}, end_row, policy,
             shared.stages[1 + step][0]);
  }
  return end_step;
}

// The row of these steps that CopyOldKeys has left out. By the first lanes.
__device__ inline void CopyOwnKey(const SparseAttentionArgs& args, int steps_begun, uint64_t policy,
                                  AttentionShared& shared) {
  const ItemList& list = shared.lists[0];
  const int own = list.keys.num_window - 1;
  const int row = own % AttentionTile::kKeys;
  const int unit = static_cast<int>(threadIdx.x % AttentionTile::kGroupThreads);
  if (own >= steps_begun * AttentionTile::kKeys || unit >= 8) return;
  uint8_t* const stage = shared.stages[1 + own / AttentionTile::kKeys][0];
  CopyLatent(FindWindowLatent(args, list.keys, own), row, unit, policy, stage);
}

// The gathering warps: for each item its queries, then the keys of all steps.
__device__ inline void GatherItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                   const CUtensorMap& query_map, const AttentionPolicies& policy,
                                   AttentionShared& shared) {
  RingStage<2> slot;
  RingStage<AttentionTile::kStages> stage;
  const int steps_begun = CopyOldKeys(args, split, policy.keys, shared);
  WaitForPreviousKernel();
  CopyOwnKey(args, steps_begun, policy.keys, shared);
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    const ItemList& list = shared.lists[slot.index];
    // A single split is never empty: a token attends to itself.
    ItemSteps steps = {};
    if (split.splits > 1) steps = BeginSteps(args, split, number, slot, shared);
    if (split.splits == 1 || steps.step < steps.end_step) {
      BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
      CopyQuery(query_map, ItemOf(args, split.splits, number), policy.queries,
                split.splits == 1 && number == static_cast<int>(blockIdx.x), stage.index, shared);
      stage.Advance();
    }
    if (split.splits == 1) steps = BeginSteps(args, split, number, slot, shared);
    const int first_entry =
        args.ratio == 128 ? max(steps.step * AttentionTile::kKeys - list.keys.num_window, 0) : 0;
    while (steps.step < steps.end_step) {
      BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
      if (steps.step >= steps_begun || number != static_cast<int>(blockIdx.x)) {
        CopyKeys(args, list, first_entry, steps, AttentionTile::kKeys, policy.keys,
                 shared.stages[stage.index][0]);
      }
      CopyAsyncArrive(&shared.full[stage.index]);
      stage.Advance();
      if (++steps.step == steps.end_step && !steps.listed) {
        CompleteSteps(args, split, number, slot, shared, steps);
      }
    }
    BarrierArrive(&shared.list_empty[slot.index]);
    slot.Advance();
  }
}

}  // namespace lodestone::cuda

#pragma once

#include "kernels/cuda/device/prefill_tile.cuh"

// The loading warps of sparse_attention_prefill.cu: three gather keys, one finds their rows.
namespace lodestone::cuda {

// The entries of two keys of a step, `first` and 32 further; -1: none.
struct StepEntries {
  int32_t entry[2];
};
__device__ inline StepEntries LoadStepEntries(const SparseAttentionArgs& args, int token,
                                              const TokenKeys& keys, int first_key) {
  StepEntries entries;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = first_key + 32 * i + static_cast<int>(threadIdx.x % 32) - keys.num_window;
    entries.entry[i] = -1;
    if (at < 0) continue;
    if (args.ratio == 4) {
      if (at < args.k) entries.entry[i] = args.top_entries[int64_t{token} * args.k + at];
    } else if (at < keys.num_entries) {
      entries.entry[i] = at;
    }
  }
  return entries;
}

// Number of keys of a step.
__device__ inline int CountStepKeys(const TokenKeys& keys, int first_key,
                                    const StepEntries& entries) {
  int count = max(0, min(keys.num_window - first_key, PrefillTile::kKeys));
#pragma unroll
  for (int i = 0; i < 2; ++i) count += __popc(__ballot_sync(~0u, entries.entry[i] >= 0));
  return count;
}

// Where the keys of a step are 64 latents of this batch, one after the other, the first of them as
// a token of the whole batch; else -1.
__device__ inline int FindOwnRows(const SparseAttentionArgs& args, const TokenKeys& keys,
                                  int first_key) {
  const int behind = first_key + keys.position - keys.num_window + 1 - keys.first_position;
  if (behind < 0 || first_key + PrefillTile::kKeys > keys.num_window) return -1;
  return static_cast<int>(args.first_token) + keys.first_token + behind;
}

// The rows of a step's keys; where there is no key, the token's own latent takes its place: its
// probability is 0.
__device__ inline void ListStep(const SparseAttentionArgs& args, const TokenKeys& keys,
                                int first_key, const StepEntries& entries,
                                const uint8_t* (&rows)[PrefillTile::kKeys]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int32_t* const pages = args.block_table + keys.seq * args.max_pages;
  const int shift = args.ratio == 4 ? 6 : 1;  // of 64 or 2 entries a page
  int32_t page[2] = {};                       // both loads before either's use
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (entries.entry[i] >= 0) page[i] = pages[entries.entry[i] >> shift];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int entry = entries.entry[i];
    const uint8_t* row = args.entries.payload + page[i] * args.entries.payload_block_stride +
                         (entry & ((1 << shift) - 1)) * kLatentBytes;
    if (entry < 0) {
      row = FindWindowLatent(args, keys, min(first_key + 32 * i + lane, keys.num_window - 1));
    }
    rows[32 * i + lane] = row;
  }
}

// Takes one of the dealt items for this block; -1: there is none left. The word is 0 between
// launches, since each block of a launch draws once. By one thread, after WaitBeforeEntries: until
// then the launch ahead may still draw from the word.
__device__ inline int DrawPrefillItem(const PrefillShare& share, uint32_t* ticket_words) {
  uint32_t ticket = blockIdx.x;
  if (share.ticket_word >= 0) ticket = atomicInc(ticket_words + share.ticket_word, gridDim.x - 1);
  const int item = static_cast<int>(share.whole * gridDim.x + ticket);
  return static_cast<int>(ticket) < share.rest ? item : -1;
}

// Waits for the kernel ahead, which may have written `top_entries`, before the first step with
// entries is looked at: no kernel writes what leads to the window's rows. Once, in the first turn,
// also of a token without entries: one step that is looked at begins less than 64 keys before the
// window's end, or at it.
__device__ inline void WaitBeforeEntries(int turn, const TokenKeys& keys, int first_key) {
  const int beyond = first_key + PrefillTile::kKeys - keys.num_window;
  if (turn == 0 && beyond > 0 && beyond <= PrefillTile::kKeys) WaitForPreviousKernel();
}

// The listing warp: the steps of all items.
__device__ inline void ListPrefill(const SparseAttentionArgs& args, const PrefillShare& share,
                                   uint32_t* ticket_words, PrefillShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  RingStage<PrefillTile::kListSteps> slot;
  RingStage<2> angle;
  int number = static_cast<int>(blockIdx.x);
  for (int turn = 0; number >= 0; ++turn) {
    const int token = PrefillItemOf(args, number).token;
    const TokenKeys keys = FindKeys(args, token);
    WaitBeforeEntries(turn, keys, 0);
    StepEntries entries = LoadStepEntries(args, token, keys, 0);
    int count = CountStepKeys(keys, 0, entries);
    for (int first_key = 0; count > 0; first_key += PrefillTile::kKeys) {
      WaitBeforeEntries(turn, keys, first_key + PrefillTile::kKeys);
      const StepEntries next = LoadStepEntries(args, token, keys, first_key + PrefillTile::kKeys);
      BarrierWait(&shared.list_empty[slot.index], slot.parity ^ 1);
      const int first_own = FindOwnRows(args, keys, first_key);
      if (first_own < 0) ListStep(args, keys, first_key, entries, shared.rows[slot.index]);
      const int next_count = CountStepKeys(keys, first_key + PrefillTile::kKeys, next);
      if (lane == 0) {
        shared.listed[slot.index] = next_count > 0 ? count : -count;
        shared.first_own[slot.index] = first_own;
      }
      BarrierArrive(&shared.list_full[slot.index]);
      slot.Advance();
      if (first_key == 0) {
        BarrierWait(&shared.angles_empty[angle.index], angle.parity ^ 1);
        shared.angles[angle.index][lane] = RopeAngle(keys.position, args.freqs[lane]);
        BarrierArrive(&shared.angles_full[angle.index]);
        angle.Advance();
      }
      entries = next;
      count = next_count;
    }
    if (turn + 1 == share.whole && share.rest > 0 && lane == 0) {
      shared.dealt_item = DrawPrefillItem(share, ticket_words);
      BarrierArrive(&shared.dealt_full);
    }
    number = PrefillNumberOf(share, turn + 1, shared);
  }
}

// The keys of a listed step to a stage. The gathering warps take turns with groups of 4 rows; lane
// l has bytes 16 (l % 8) .. + 15 of all slices of row l / 8 of a group.
__device__ inline void CopyStep(const uint8_t* const (&rows)[PrefillTile::kKeys], uint8_t* stage) {
  const int warp = threadIdx.x % PrefillTile::kGroupThreads / 32;
  const int unit = threadIdx.x % 8;
  constexpr int kGroupRows = PrefillTile::kGatherWarps * PrefillTile::kRowsAtOnce;
  const int first = warp * PrefillTile::kRowsAtOnce + static_cast<int>(threadIdx.x % 32 / 8);
#pragma unroll
  for (int i = 0; i < PrefillTile::kKeys; i += kGroupRows) {
    const int row = first + i;
    if (row >= PrefillTile::kKeys) break;
    CopyLatentSlices(rows[row] + unit * 16,
                     SharedAddress(stage) + row * 128 + (unit ^ row % 8) * 16, kEvictLast);
  }
}

// Slices of 64 dims of 64 rows to a stage, one box each: queries, or keys that lie one after the
// other. By all gathering threads.
template <int kSlices, typename Copy>
__device__ inline void CopyBoxes(int stage, PrefillShared& shared, const Copy& copy) {
  if (threadIdx.x % PrefillTile::kGroupThreads == 0) {
    BarrierArriveExpect(&shared.full[stage], kSlices * PrefillTile::kSliceBytes);
    for (int i = 0; i < kSlices; ++i) copy(i, shared.stages[stage][i], &shared.full[stage]);
  }
  BarrierArrive(&shared.full[stage]);
}

// The gathering warps: for each item its queries, then the keys of all steps.
__device__ inline void GatherPrefill(const SparseAttentionArgs& args, const PrefillMaps& maps,
                                     const PrefillShare& share, PrefillShared& shared) {
  RingStage<PrefillTile::kListSteps> slot;
  RingStage<PrefillTile::kStages> stage;
  int number = static_cast<int>(blockIdx.x);
  for (int turn = 0; number >= 0; number = PrefillNumberOf(share, ++turn, shared)) {
    const PrefillItem item = PrefillItemOf(args, number);
    BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
    CopyBoxes<kQueryRegisterSlices>(
        stage.index, shared, [&](int slice, void* to, uint64_t* full) {
          CopyBox3With(kEvictFirst, to, &maps.queries, full, slice * 64, item.head, item.token);
        });
    stage.Advance();
    for (bool last = false; !last;) {
      BarrierWait(&shared.list_full[slot.index], slot.parity);
      BarrierWait(&shared.empty[stage.index], stage.parity ^ 1);
      const int keys = shared.listed[slot.index];
      const int first_own = shared.first_own[slot.index];
      last = keys < 0;
      if (threadIdx.x % PrefillTile::kGroupThreads == 0) shared.keys[stage.index] = keys;
      if (first_own >= 0) {
        CopyBoxes<PrefillTile::kSlices>(stage.index, shared,
                                        [&](int slice, void* to, uint64_t* full) {
                                          CopyBox2(to, &maps.latents, full, slice * 64, first_own);
                                        });
      } else {
        CopyStep(shared.rows[slot.index], shared.stages[stage.index][0]);
        CopyAsyncArrive(&shared.full[stage.index]);
        if (threadIdx.x % PrefillTile::kGroupThreads == 0) {
          BarrierArrive(&shared.full[stage.index]);
        }
      }
      BarrierArrive(&shared.list_empty[slot.index]);
      slot.Advance();
      stage.Advance();
    }
  }
}

}  // namespace lodestone::cuda

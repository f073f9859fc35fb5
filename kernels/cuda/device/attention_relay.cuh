#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_exchange.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/sparse_attention.h"

// What a thread block of sparse_attention_relay.cu keeps in shared memory, and how it gets there.
namespace lodestone::cuda {

template <int kClusterBlocks>
struct RelayTile {
  static constexpr int kBlocks = kClusterBlocks;
  static constexpr int kHeads = kAttentionHeads;
  static constexpr int kKeys = kAttentionKeys;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kRopeDims = kAttentionRopeDims;
  static constexpr int kSlices = kDims / 64;  // of 64 dims: 128 bytes a row
  static constexpr int kSliceBytes = kKeys * 128;
  static constexpr int kKeyStages = 2;  // one for each computing warpgroup
  static constexpr int kMaxSteps = MaxClusterSteps({kHeads, kBlocks});
  static constexpr int kBlockDims = kDims / kBlocks;
  static constexpr int kGroupDims = kBlockDims / 2;  // of one computing warpgroup
  static constexpr int kValueSlices = kBlockDims / 64;
  static constexpr int kValueStages = kKeyStages * kSlices / kValueSlices;
  static constexpr int kGroupThreads = 128;
  static constexpr int kComputeThreads = 2 * kGroupThreads;
  static constexpr int kThreads = 3 * kGroupThreads;
  static constexpr int kEntriesEach = (kMaxSteps * kKeys + kThreads - 1) / kThreads;
  // Registers of a thread: 65,536 a processor.
  static constexpr int kComputeRegisters = 232;
  static constexpr int kLoadRegisters = 40;
  static_assert(2 * kComputeRegisters + kLoadRegisters <= 512);
  static_assert(kBlocks == 2 || kBlocks == 4, "warpgroups of 128 or 64 dims");
};

template <typename Tile>
struct alignas(1024) RelayShared {
  union {
    uint8_t keys[Tile::kKeyStages][Tile::kSlices][Tile::kSliceBytes];
    // This block's dims, once the stage of keys in this place is no longer used.
    uint8_t values[Tile::kValueStages][Tile::kValueSlices][Tile::kSliceBytes];
  };
  union {
    uint8_t query[Tile::kSlices][Tile::kHeads * 128];  // until it is in registers
    StepResults<Tile::kHeads, Tile::kMaxSteps> results;
  };
  const uint8_t* rows[Tile::kMaxSteps * Tile::kKeys];
  int32_t pages[kSharedPages];
  float2 angles[Tile::kRopeDims / 2];
  uint64_t query_full;
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
  uint64_t results_full;
  uint64_t values_full[Tile::kValueStages];
  uint64_t values_empty[Tile::kValueStages];
};
static_assert(sizeof(RelayShared<RelayTile<2>>) <= 227 * 1024);
static_assert(sizeof(RelayShared<RelayTile<4>>) <= 227 * 1024);

// All dims of the keys of one step, by kCopyThreads threads, which arrive at `full`. Thread t has
// bytes 16 (t % 8) .. + 15 of all slices of rows t / 8 + kCopyThreads / 8 i.
template <int kCopyThreads>
__device__ inline void LoadKeys(const uint8_t* const* rows, int num_keys, int step, uint64_t policy,
                                uint8_t* keys, uint64_t* full) {
  const int thread = static_cast<int>(threadIdx.x) % kCopyThreads;
  const int first_row = thread / 8;
  const int unit = thread % 8;
  const uint32_t to = SharedAddress(keys) + (unit ^ (first_row % 8)) * 16;
#pragma unroll
  for (int i = 0; i < kAttentionKeys; i += kCopyThreads / 8) {
    const int row = first_row + i;
    CopyLatentSlices(RowOf(rows, num_keys, step * kAttentionKeys + row) + unit * 16, to + row * 128,
                     policy);
  }
  CopyAsyncArrive(full);
}

// Steps that fall to a block: rank, rank + kBlocks ...
template <typename Tile>
__device__ inline int NumTurns(int num_steps, int rank) {
  return rank < num_steps ? (num_steps - rank - 1) / Tile::kBlocks + 1 : 0;
}

// The stage of a step's values. The first ones lie where the keys are done with first: not in the
// last turn's stage.
template <typename Tile>
__device__ inline int ValueStage(int step, int num_turns) {
  return (step + num_turns % 2 * (Tile::kValueStages / 2)) % Tile::kValueStages;
}

// Whether a block's first step lies in the window, whose rows but the token's own are older than
// this step of the model.
template <typename Tile>
__device__ inline bool BeginsWithOldRows(const SparseAttentionArgs& args, const TokenKeys& keys,
                                         int rank) {
  return args.old_rows && (rank + 1) * Tile::kKeys <= keys.num_window;
}
// Of that step the older rows, or the token's own. By the third warpgroup.
template <typename Tile>
__device__ inline void LoadWindowStep(const SparseAttentionArgs& args, const TokenKeys& keys,
                                      int rank, bool own, RelayShared<Tile>& shared) {
  const int thread = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const int unit = thread % 8;
#pragma unroll
  for (int row = thread / 8; row < Tile::kKeys; row += Tile::kGroupThreads / 8) {
    const int index = rank * Tile::kKeys + row;
    if ((index == keys.num_window - 1) != own) continue;
    CopyLatentSlices(FindWindowLatent(args, keys, index) + unit * 16,
                     SharedAddress(shared.keys[0][0]) + row * 128 + (unit ^ row % 8) * 16,
                     kEvictNormal);
  }
}

// The keys of this block's steps, then its dims of the values of all steps. By the third warpgroup,
// which has arrived at the cluster's barrier and waits for it in between. `begun`: older rows of
// the first step are on their way.
template <typename Tile>
__device__ inline void LoadRelay(const SparseAttentionArgs& args, const TokenKeys& keys,
                                 int num_keys, int rank, bool begun, RelayShared<Tile>& shared) {
  const int num_steps = (num_keys + Tile::kKeys - 1) / Tile::kKeys;
  const int num_turns = NumTurns<Tile>(num_steps, rank);
  for (int turn = 0; turn < num_turns; ++turn) {
    const int stage = turn % Tile::kKeyStages;
    // From here on the computing warpgroups must have passed the barrier, too: compute-sanitizer
    // lets nobody pass while a thread is elsewhere.
    if (turn == Tile::kKeyStages) ClusterWait();
    if (turn == 0 && begun) {
      LoadWindowStep<Tile>(args, keys, rank, true, shared);
      CopyAsyncArrive(&shared.keys_full[0]);
      continue;
    }
    BarrierWait(&shared.keys_empty[stage], turn / Tile::kKeyStages % 2 ^ 1);
    LoadKeys<Tile::kGroupThreads>(shared.rows, num_keys, rank + turn * Tile::kBlocks, kEvictNormal,
                                  shared.keys[stage][0], &shared.keys_full[stage]);
  }
  if (num_turns <= Tile::kKeyStages) ClusterWait();
  const int thread = static_cast<int>(threadIdx.x) % Tile::kGroupThreads;
  const int first_row = thread / 8;
  const int unit = thread % 8;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = ValueStage<Tile>(step, num_turns);
    if (step < Tile::kValueStages) {
      // The uses of the keys' stage in this place: turns of the same parity.
      const int key_stage = stage / (Tile::kValueStages / 2);
      const int uses = (num_turns + 1 - key_stage) / 2;
      BarrierWait(&shared.keys_empty[key_stage], uses % 2 ^ 1);
    } else {
      BarrierWait(&shared.values_empty[stage], (step / Tile::kValueStages - 1) % 2);
    }
    const uint32_t to = SharedAddress(shared.values[stage]) + (unit ^ (first_row % 8)) * 16;
#pragma unroll
    for (int i = 0; i < Tile::kKeys; i += Tile::kGroupThreads / 8) {
      const int row = first_row + i;
      CopyLatentSlices<Tile::kValueSlices>(RowOf(shared.rows, num_keys, step * Tile::kKeys + row) +
                                               rank * Tile::kBlockDims * 2 + unit * 16,
                                           to + row * 128, kEvictFirst);
    }
    CopyAsyncArrive(&shared.values_full[stage]);
  }
}

}  // namespace lodestone::cuda

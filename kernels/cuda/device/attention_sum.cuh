#pragma once

#include "kernels/cuda/device/attention_items.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The second and third warpgroup of sparse_attention_blocks.cu: probabilities times values.
namespace lodestone::cuda {

// sums *= factor of their row (r, r + 8), unless all factors of the warp are 1.
__device__ inline void RescaleSums(HalfSums& sums, float factor, float factor8) {
  if (__all_sync(~0u, factor == 1.0f && factor8 == 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= i / 2 % 2 == 0 ? factor : factor8;
}

// The next step's values, once they are there.
__device__ inline void AddStage(const RingStage<AttentionTile::kStages>& stage, int half,
                                AttentionShared& shared, HalfSums& sums) {
  BarrierWait(&shared.full[stage.index], stage.parity);
  SharedProxyFence();
  const uint8_t* const values = shared.stages[stage.index][half * AttentionTile::kSlices / 2];
  AddValues(shared.probs, values, sums);
}

// This thread's results of one half of the dims, divided, rounded and rotated back, to `slices`.
__device__ inline void StageOut(int half, const HalfSums& sums, const float (&inverse)[2],
                                const float2* angles, uint8_t* slices) {
  constexpr int kFirstRope = (AttentionTile::kDims / 2 - AttentionTile::kRopeDims) / 8;
  const int lane = threadIdx.x % 32;
  const int to_row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + lane % 16;
  const uint32_t to = SharedAddress(slices) + to_row * 128;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {  // blocks of 8 dims
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 4 * i + 2 * j;
      words[j] = PackBf16(sums[at / 64][at % 64] * inverse[j % 2],
                          sums[at / 64][at % 64 + 1] * inverse[j % 2]);
      if (i >= kFirstRope && half == 1) {
        words[j] = RotateBack(words[j], angles[(i + j / 2 - kFirstRope) * 4 + lane % 4]);
      }
    }
    const int unit = (i % 8 + lane / 16) ^ (to_row % 8);
    StoreMatrices(to + i / 8 * AttentionTile::kSliceBytes + unit * 16, words[0], words[1], words[2],
                  words[3]);
  }
}

// The sums of a split as they are, to scratch.
__device__ inline void StoreSums(const SparseAttentionArgs& args, int splits,
                                 const AttentionItem& item, int half, const HalfSums& sums) {
  const int row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  const int64_t plane = PartialPlane(item, splits) * args.num_heads;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = item.head + row + 8 * j;
    if (head >= args.num_heads) continue;
    float* const to = PartialOf(args, splits).sums + (plane + head) * AttentionTile::kDims +
                      half * (AttentionTile::kDims / 2) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float* const pair = &sums[i / 16][i % 16 * 4 + 2 * j];
      *reinterpret_cast<float2*>(to + i * 8) = {pair[0], pair[1]};
    }
  }
}

// What StageOut has put into `slices`, to global memory: each warp its 16 rows. Then `empty` is
// arrived at: the slices have been read, though not all is stored.
__device__ inline void StoreOut(const SparseAttentionArgs& args, const AttentionItem& item,
                                int half, const uint8_t* slices, uint64_t* empty) {
  constexpr int kSlices = AttentionTile::kSlices / 2;
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + lane / 8;
  uint4 units[4][kSlices];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + 4 * i;
#pragma unroll
    for (int j = 0; j < kSlices; ++j) {
      units[i][j] = *reinterpret_cast<const uint4*>(slices + j * AttentionTile::kSliceBytes +
                                                    row * 128 + (lane % 8 ^ row % 8) * 16);
    }
  }
  BarrierArrive(empty);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = item.head + first_row + 4 * i;
    if (head >= args.num_heads) break;
    uint16_t* const out = args.out +
                          (int64_t{item.token} * args.num_heads + head) * AttentionTile::kDims +
                          half * (AttentionTile::kDims / 2) + lane % 8 * 8;
#pragma unroll
    for (int j = 0; j < kSlices; ++j) *reinterpret_cast<uint4*>(out + j * 64) = units[i][j];
  }
}

// Stores one half of the dims of an item: results, by way of its last step's stage, or sums. Leaves
// the stage.
__device__ inline void FinishSums(const SparseAttentionArgs& args, const AttentionSplits& split,
                                  int number, int half, const float (&inverse)[2],
                                  const float2* angles, uint8_t* values, uint64_t* empty,
                                  const HalfSums& sums) {
  const AttentionItem item = ItemOf(args, split.splits, number);
  if (split.splits > 1) {
    BarrierArrive(empty);
    StoreSums(args, split.splits, item, half, sums);
    return;
  }
  StageOut(half, sums, inverse, angles, values);
  __syncwarp();
  StoreOut(args, item, half, values, empty);
}

// Adds up an item with at least one step and stores it. A step's values wait until the next step's
// scores are there: both would take turns on the tensor cores, and these idle while probabilities
// are computed.
__device__ inline void SumItem(const SparseAttentionArgs& args, const AttentionSplits& split,
                               int number, int half, const RingStage<2>& slot, ItemSteps& steps,
                               RingStage<AttentionTile::kStages>& stage, int& steps_done,
                               AttentionShared& shared) {
  const int row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  HalfSums sums;
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0;
  stage.Advance();  // the queries
  NamedBarrierSync(kScored + steps_done % 2, kComputeThreads);
  for (;;) {
    NamedBarrierSync(kProbsFull, kComputeThreads);
    ++steps_done;
    if (++steps.step == steps.end_step && !steps.listed) {
      CompleteSteps(args, split, number, slot, shared, steps);
    }
    RescaleSums(sums, shared.rescale[row], shared.rescale[row + 8]);
    if (steps.step == steps.end_step) break;
    NamedBarrierSync(kScored + steps_done % 2, kComputeThreads);
    AddStage(stage, half, shared, sums);
    NamedBarrierArrive(kProbsEmpty, kComputeThreads);
    if (threadIdx.x % AttentionTile::kGroupThreads == 0) {
      BarrierArrive(&shared.empty[stage.index], AttentionTile::kGroupThreads);
    }
    stage.Advance();
  }
  const float inverse[2] = {shared.inverse[row], shared.inverse[row + 8]};
  AddStage(stage, half, shared, sums);
  NamedBarrierArrive(kProbsEmpty, kComputeThreads);
  FinishSums(args, split, number, half, inverse, shared.lists[slot.index].angles,
             shared.stages[stage.index][half * AttentionTile::kSlices / 2],
             &shared.empty[stage.index], sums);
  stage.Advance();
}

// Second and third warpgroup: one half of the output's dims of all items.
__device__ inline void SumItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                AttentionShared& shared) {
  const int half = static_cast<int>(threadIdx.x / AttentionTile::kGroupThreads) - 1;
  RingStage<2> slot;
  RingStage<AttentionTile::kStages> stage;
  int steps_done = 0;
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    ItemSteps steps = BeginSteps(args, split, number, slot, shared);
    if (steps.step < steps.end_step) {
      SumItem(args, split, number, half, slot, steps, stage, steps_done, shared);
    }
    BarrierArrive(&shared.list_empty[slot.index]);
    slot.Advance();
  }
}

}  // namespace lodestone::cuda

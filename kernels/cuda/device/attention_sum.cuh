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

// The next step's values of this warpgroup's half of the dims, once they are there.
__device__ inline uint8_t* WaitForValues(const RingStage<AttentionTile::kStages>& stage, int half,
                                         AttentionShared& shared) {
  BarrierWait(&shared.full[stage.index], stage.parity);
  SharedProxyFence();
  return shared.stages[stage.index][half * AttentionTile::kSlices / 2];
}

// What becomes of an item's sums.
struct OutScale {
  float inverse[2];      // of the denominators of rows r, r + 8
  const float2* angles;  // of the rotary dims
};

// This thread's results of part `kPart` of one half of the dims, divided, rounded and rotated back,
// to the part's slices.
inline constexpr int kPartDims = 128;
inline constexpr int kPartSlices = kPartDims / 64;
template <int kPart>
__device__ inline void StageOut(int half, const float (&sums)[64], const OutScale& scale,
                                uint8_t* slices) {
  constexpr int kFirstRope = kPart == 1 ? (kPartDims - AttentionTile::kRopeDims) / 8 : kPartDims;
  const int lane = threadIdx.x % 32;
  const int to_row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + lane % 16;
  const uint32_t to = SharedAddress(slices) + to_row * 128;
#pragma unroll
  for (int i = 0; i < kPartDims / 8; i += 2) {  // blocks of 8 dims
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 4 * i + 2 * j;
      words[j] = PackBf16(sums[at] * scale.inverse[j % 2], sums[at + 1] * scale.inverse[j % 2]);
      if (i >= kFirstRope && half == 1) {
        words[j] = RotateBack(words[j], scale.angles[(i + j / 2 - kFirstRope) * 4 + lane % 4]);
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

// What StageOut has put into a part's slices, to global memory: each warp its 16 rows.
__device__ inline void StoreOut(const SparseAttentionArgs& args, const AttentionItem& item,
                                int first_dim, const uint8_t* slices) {
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + lane / 8;
  uint4 units[4][kPartSlices];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + 4 * i;
#pragma unroll
    for (int j = 0; j < kPartSlices; ++j) {
      units[i][j] = *reinterpret_cast<const uint4*>(slices + j * AttentionTile::kSliceBytes +
                                                    row * 128 + (lane % 8 ^ row % 8) * 16);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = item.head + first_row + 4 * i;
    if (head >= args.num_heads) break;
    uint16_t* const out = args.out +
                          (int64_t{item.token} * args.num_heads + head) * AttentionTile::kDims +
                          first_dim + lane % 8 * 8;
#pragma unroll
    for (int j = 0; j < kPartSlices; ++j) *reinterpret_cast<uint4*>(out + j * 64) = units[i][j];
  }
}

// Stores one part of one half of the dims of an item, by way of its last step's stage.
template <int kPart>
__device__ inline void FinishPart(const SparseAttentionArgs& args, const AttentionItem& item,
                                  int half, const OutScale& scale, uint8_t* values,
                                  const float (&sums)[64]) {
  // The part's values are overwritten: all warps have their products.
  NamedBarrierSync(kSummed + half, AttentionTile::kGroupThreads);
  uint8_t* const slices = values + kPart * kPartSlices * AttentionTile::kSliceBytes;
  StageOut<kPart>(half, sums, scale, slices);
  __syncwarp();
  StoreOut(args, item, half * (AttentionTile::kDims / 2) + kPart * kPartDims, slices);
}

// Adds an item's last values and stores its results: the first part while the second is added up.
__device__ inline void FinishItem(const SparseAttentionArgs& args, const AttentionItem& item,
                                  int half, const OutScale& scale, uint8_t* values,
                                  const AttentionShared& shared, HalfSums& sums) {
  QueueValues(shared.probs, values, 0, sums[0]);
  QueueValues(shared.probs, values, 1, sums[1]);
  WgmmaWait<1>();
  HoldRegisters(sums[0]);
  FinishPart<0>(args, item, half, scale, values, sums[0]);
  WgmmaWait<0>();
  HoldRegisters(sums[1]);
  NamedBarrierArrive(kProbsEmpty, kComputeThreads);
  FinishPart<1>(args, item, half, scale, values, sums[1]);
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
    AddValues(shared.probs, WaitForValues(stage, half, shared), sums);
    NamedBarrierArrive(kProbsEmpty, kComputeThreads);
    if (threadIdx.x % AttentionTile::kGroupThreads == 0) {
      BarrierArrive(&shared.empty[stage.index], AttentionTile::kGroupThreads);
    }
    stage.Advance();
  }
  const AttentionItem item = ItemOf(args, split.splits, number);
  const OutScale scale = {.inverse = {shared.inverse[row], shared.inverse[row + 8]},
                          .angles = shared.lists[slot.index].angles};
  uint8_t* const values = WaitForValues(stage, half, shared);
  if (split.splits > 1) {
    AddValues(shared.probs, values, sums);
    NamedBarrierArrive(kProbsEmpty, kComputeThreads);
    BarrierArrive(&shared.empty[stage.index]);
    StoreSums(args, split.splits, item, half, sums);
  } else {
    FinishItem(args, item, half, scale, values, shared, sums);
    BarrierArrive(&shared.empty[stage.index]);
  }
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

#pragma once

#include "kernels/cuda/device/attention_items.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The second and third warpgroup of sparse_attention_blocks.cu: probabilities times values.
namespace lodestone::cuda {

inline constexpr int kOutStagedBarrier = 2;  // and 3: one for each half

// One half of the dims of 64 heads; two products of 128 dims each, since an instruction over 256
// needs more registers than a thread has at the kernel's start.
using HalfSums = float[2][64];

// sums *= factor of their row (r, r + 8), unless all factors of the warp are 1.
__device__ inline void RescaleSums(HalfSums& sums, float factor, float factor8) {
  if (__all_sync(~0u, factor == 1.0f && factor8 == 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= i / 2 % 2 == 0 ? factor : factor8;
}

// sums += probabilities x one half of the values' dims.
__device__ inline void AddValues(const AttentionShared& shared, int buffer, const uint8_t* values,
                                 HalfSums& sums) {
  const uint64_t probs = RowTileDescriptor(SharedAddress(shared.probs[buffer]));
  const uint64_t base = ColumnTileDescriptor(SharedAddress(values), AttentionTile::kSliceBytes);
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < AttentionTile::kKeys / 16; ++i) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      WgmmaSharedAColumns(sums[part], AdvanceTile(probs, i * 32),
                          AdvanceTile(base, part * 2 * AttentionTile::kSliceBytes + i * 16 * 128),
                          true);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(sums[0]);
  HoldRegisters(sums[1]);
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
        const float2 rotated = RotateBack(Bf16ToFloat(static_cast<uint16_t>(words[j])),
                                          Bf16ToFloat(static_cast<uint16_t>(words[j] >> 16)),
                                          angles[(i + j / 2 - kFirstRope) * 4 + lane % 4]);
        words[j] = PackBf16(rotated.x, rotated.y);
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

// Stores one half of the dims of an item: results, by way of its last step's stage, or sums.
__device__ inline void FinishSums(const SparseAttentionArgs& args, const AttentionSplits& split,
                                  const AttentionMaps& maps, int number, int half,
                                  const float (&inverse)[2], const float2* angles, uint8_t* values,
                                  const HalfSums& sums) {
  const AttentionItem item = ItemOf(args, split.splits, number);
  if (split.splits > 1) {
    StoreSums(args, split.splits, item, half, sums);
    return;
  }
  StageOut(half, sums, inverse, angles, values);
  SharedProxyFence();
  NamedBarrierSync(kOutStagedBarrier + half, AttentionTile::kGroupThreads);
  if (threadIdx.x % AttentionTile::kGroupThreads != 0) return;
  for (int i = 0; i < AttentionTile::kSlices / 2; ++i) {
    StoreBox3(&maps.out, values + i * AttentionTile::kSliceBytes,
              (half * AttentionTile::kSlices / 2 + i) * 64, item.head, item.token);
  }
  WaitForStores();
}

// Second and third warpgroup: one half of the output's dims of all items. A step's values wait
// until the next step's scores are there: both would take turns on the tensor cores, and these idle
// while probabilities are computed.
__device__ inline void SumItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                const AttentionMaps& maps, AttentionShared& shared) {
  const int half = static_cast<int>(threadIdx.x / AttentionTile::kGroupThreads) - 1;
  const int row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  RingStage<2> slot;
  RingStage<1> scored;
  RingStage<AttentionTile::kProbBuffers> buffer;
  RingStage<AttentionTile::kStages> stage;
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    ItemSteps steps = BeginSteps(args, split, number, slot, shared);
    HalfSums sums;
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0;
    if (steps.step < steps.end_step) stage.Advance();  // the queries
    while (steps.step < steps.end_step) {
      BarrierWait(&shared.probs_full[buffer.index], buffer.parity);
      if (++steps.step == steps.end_step && !steps.listed) {
        CompleteSteps(args, split, number, slot, shared, steps);
      }
      RescaleSums(sums, shared.rescale[buffer.index][row], shared.rescale[buffer.index][row + 8]);
      scored.Advance();
      if (steps.step < steps.end_step) BarrierWait(&shared.scored, scored.parity);
      BarrierWait(&shared.full[stage.index], stage.parity);
      SharedProxyFence();
      uint8_t* const values = shared.stages[stage.index][half * AttentionTile::kSlices / 2];
      AddValues(shared, buffer.index, values, sums);
      const float inverse[2] = {shared.inverse[buffer.index][row],
                                shared.inverse[buffer.index][row + 8]};
      __syncwarp();
      if (threadIdx.x % 32 == 0) BarrierArrive(&shared.probs_empty[buffer.index]);
      if (steps.step == steps.end_step) {
        FinishSums(args, split, maps, number, half, inverse, shared.lists[slot.index].angles,
                   values, sums);
      }
      if (threadIdx.x % AttentionTile::kGroupThreads == 0)
        BarrierArrive(&shared.empty[stage.index]);
      buffer.Advance();
      stage.Advance();
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(&shared.list_empty[slot.index]);
    slot.Advance();
  }
}

}  // namespace lodestone::cuda

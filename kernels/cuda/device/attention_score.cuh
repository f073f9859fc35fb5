#pragma once

#include "kernels/cuda/device/attention_items.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The first warpgroup of sparse_attention_blocks.cu: scores and probabilities.
namespace lodestone::cuda {

// threadIdx.x, read here: what follows from it is computed again, not kept in registers that the
// loop has not.
__device__ inline int ThreadNow() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Takes the queries from a stage.
__device__ inline void TakeQuery(
    uint8_t (&stage)[AttentionTile::kSlices][AttentionTile::kSliceBytes], AttentionShared& shared,
    QueryRegisters& query) {
  const int thread = threadIdx.x % AttentionTile::kGroupThreads;
  ReadQuery(stage[0], query);
  const auto* const rest = reinterpret_cast<const uint4*>(stage[kQueryRegisterSlices]);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(shared.query)) / 16 / AttentionTile::kGroupThreads;
       ++i) {
    reinterpret_cast<uint4*>(shared.query)[thread + i * AttentionTile::kGroupThreads] =
        rest[thread + i * AttentionTile::kGroupThreads];
  }
  SharedProxyFence();
  NamedBarrierSync(kQueryTaken, AttentionTile::kGroupThreads);
}

// Probabilities and factors for the warpgroups of the values.
__device__ inline void ShareProbabilities(const uint32_t (&probs)[4][4], const float (&rescale)[2],
                                          AttentionShared& shared) {
  const int lane = ThreadNow() % 32;
  const int first_row = ThreadNow() % AttentionTile::kGroupThreads / 32 * 16;
  const int to_row = first_row + lane % 16;
  const uint32_t to = SharedAddress(shared.probs) + to_row * 128;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = (2 * i + lane / 16) ^ (to_row % 8);
    StoreMatrices(to + unit * 16, probs[i][0], probs[i][1], probs[i][2], probs[i][3]);
  }
  if (lane % 4 == 0) {
    shared.rescale[first_row + lane / 4] = rescale[0];
    shared.rescale[first_row + lane / 4 + 8] = rescale[1];
  }
  SharedProxyFence();
}

// 1 / denominator of each head, or the split's statistics. `sinks`: of the item's heads.
__device__ inline void FinishStats(const SparseAttentionArgs& args, const AttentionSplits& split,
                                   int number, const RowStats& stats, const float* sinks,
                                   AttentionShared& shared) {
  const AttentionItem item = ItemOf(args, split.splits, number);
  if (threadIdx.x % 4 != 0) return;
  const int row = threadIdx.x % AttentionTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = item.head + row + 8 * j;
    if (head >= args.num_heads) continue;
    if (split.splits > 1) {
      PartialOf(args, split.splits)
          .stats[PartialPlane(item, split.splits) * args.num_heads + head] = {stats.reference[j],
                                                                              stats.sum[j]};
    } else {
      const float sink = SinkTerm(sinks[row + 8 * j], stats.reference[j]);
      shared.inverse[row + 8 * j] = InverseDenominator(stats.sum[j], sink);
    }
  }
}

// A split without keys says so.
__device__ inline void StoreEmptySplit(const SparseAttentionArgs& args, int splits,
                                       const AttentionItem& item) {
  const int head = item.head + static_cast<int>(threadIdx.x % AttentionTile::kGroupThreads);
  if (threadIdx.x % AttentionTile::kGroupThreads >= AttentionTile::kHeads || head >= args.num_heads)
    return;
  PartialOf(args, splits).stats[PartialPlane(item, splits) * args.num_heads + head] = {-INFINITY,
                                                                                       0};
}

// Gives a step's probabilities to the warpgroups of the values, once these are done with the step
// before.
__device__ inline void PassProbabilities(const uint32_t (&probs)[4][4], const float (&rescale)[2],
                                         int& steps_done, AttentionShared& shared) {
  ShareProbabilities(probs, rescale, shared);
  NamedBarrierArrive(kProbsFull, kComputeThreads);
  ++steps_done;
}

// Scores and probabilities of an item with at least one step. A step's probabilities are shared
// while the next step's scores are computed.
__device__ inline void ScoreItem(const SparseAttentionArgs& args, const AttentionSplits& split,
                                 float scale, int number, const RingStage<2>& slot,
                                 ItemSteps& steps, RingStage<AttentionTile::kStages>& stage,
                                 int& steps_done, AttentionShared& shared) {
  BarrierWait(&shared.full[stage.index], stage.parity);
  QueryRegisters query;
  TakeQuery(shared.stages[stage.index], shared, query);
  BarrierArrive(&shared.empty[stage.index], 3);  // for all warpgroups
  stage.Advance();
  RowStats stats = {{-INFINITY, -INFINITY}, {0, 0}};
  uint32_t probs[4][4];
  float rescale[2];
  bool waiting = false;  // probabilities of the step before, to be shared
  for (; steps.step < steps.end_step; ++steps.step) {
    BarrierWait(&shared.full[stage.index], stage.parity);
    SharedProxyFence();
    float scores[32];
    QueueScores(query, shared.query[0], shared.stages[stage.index][0], scores);
    if (waiting) {
      if (steps_done > 0) NamedBarrierSync(kProbsEmpty, kComputeThreads);
      PassProbabilities(probs, rescale, steps_done, shared);
    }
    WgmmaWait<0>();
    HoldRegisters(scores);
    NamedBarrierArrive(kScored + steps_done % 2, kComputeThreads);
    if (threadIdx.x % AttentionTile::kGroupThreads == 0) {
      BarrierArrive(&shared.empty[stage.index], AttentionTile::kGroupThreads);
    }
    stage.Advance();
    if (steps.step + 1 == steps.end_step && !steps.listed) {
      CompleteSteps(args, split, number, slot, shared, steps);
    }
    ToProbabilities(scores, steps.num_keys - steps.step * AttentionTile::kKeys, scale, stats, probs,
                    rescale);
    waiting = true;
  }
  if (steps_done > 0) NamedBarrierSync(kProbsEmpty, kComputeThreads);
  FinishStats(args, split, number, stats, shared.lists[slot.index].sink, shared);
  __syncwarp();
  PassProbabilities(probs, rescale, steps_done, shared);
}

// First warpgroup: scores and probabilities of all items.
__device__ inline void ScoreItems(const SparseAttentionArgs& args, const AttentionSplits& split,
                                  float scale, AttentionShared& shared) {
  RingStage<2> slot;
  RingStage<AttentionTile::kStages> stage;
  int steps_done = 0;
  for (int number = blockIdx.x; number < NumItems(args, split.splits); number += gridDim.x) {
    ItemSteps steps = BeginSteps(args, split, number, slot, shared);
    if (steps.step == steps.end_step) {
      StoreEmptySplit(args, split.splits, ItemOf(args, split.splits, number));
    } else {
      ScoreItem(args, split, scale, number, slot, steps, stage, steps_done, shared);
    }
    BarrierArrive(&shared.list_empty[slot.index]);
    slot.Advance();
  }
  if (steps_done > 0) NamedBarrierSync(kProbsEmpty, kComputeThreads);
}

}  // namespace lodestone::cuda

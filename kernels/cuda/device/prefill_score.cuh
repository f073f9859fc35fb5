#pragma once

#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/prefill_softmax.cuh"
#include "kernels/cuda/device/prefill_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The first warpgroup of sparse_attention_prefill.cu: scores and probabilities.
namespace lodestone::cuda {

// Whether a stage is full; the same answer for the whole warpgroup, whose warps wait for each other
// where they queue products.
__device__ inline bool StageFull(const RingStage<PrefillTile::kStages>& stage,
                                 PrefillShared& shared) {
  return NamedBarrierAll(kScoreGroup, PrefillTile::kGroupThreads,
                         BarrierTest(&shared.full[stage.index], stage.parity));
}

// Starts the copy of the queries that stay in shared memory. By one thread.
__device__ inline void CopySharedQuery(const PrefillMaps& maps, const PrefillItem& item,
                                       PrefillShared& shared) {
  BarrierArriveExpect(&shared.query_full, sizeof(shared.query));
  for (int i = 0; i < PrefillTile::kSharedSlices; ++i) {
    CopyBox3With(kEvictFirst, shared.query[i], &maps.queries, &shared.query_full,
                 (kQueryRegisterSlices + i) * 64, item.head, item.token);
  }
}

// Scores of a step become probabilities and factors in shared memory.
__device__ inline void StoreStep(float (&scores)[32], int keys, float scale, int turn,
                                 PrefillStats& stats, StepSums& step, PrefillShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x % PrefillTile::kGroupThreads / 32) * 16;
  const int to_row = first_row + lane % 16;
  const uint32_t to = SharedAddress(shared.probs[turn]) + to_row * 128 +
                      (lane / 16 ^ to_row % 8) * 16;  // unit u at u ^ (row % 8)
  ToStepProbabilities(scores, keys, scale, stats, step, [to](int group, const uint32_t(&words)[4]) {
    StoreMatrices(to ^ group * 32, words[0], words[1], words[2], words[3]);
  });
  if (lane % 4 == 0) {
    shared.rescale[turn][first_row + lane / 4] = step.rescale[0];
    shared.rescale[turn][first_row + lane / 4 + 8] = step.rescale[1];
  }
}

// What StoreStep has stored, to the warpgroups of the values.
__device__ inline void PassStep(int turn, PrefillShared& shared) {
  SharedProxyFence();
  NamedBarrierArrive(kStepPassed + turn, kPrefillComputeThreads);
}

// The sinks of this thread's rows, read long before they are needed: behind keys, loads take a
// thousand cycles.
__device__ inline float2 LoadSinks(const SparseAttentionArgs& args, const PrefillItem& item) {
  const int head = item.head + static_cast<int>(threadIdx.x % PrefillTile::kGroupThreads / 32 * 16 +
                                                threadIdx.x % 32 / 4);
  const int last = static_cast<int>(args.num_heads) - 1;
  return {args.sink[min(head, last)], args.sink[min(head + 8, last)]};
}

// The final factor of each head.
__device__ inline void StoreFactors(const float2& sinks, int turn, const PrefillStats& stats,
                                    PrefillShared& shared) {
  const float largest[2] = {LargestOfQuad(stats.largest[0]), LargestOfQuad(stats.largest[1])};
  if (threadIdx.x % 4 != 0) return;
  const int row = threadIdx.x % PrefillTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
  shared.factor[turn][row] = FinalFactor(stats, 0, largest[0], sinks.x);
  shared.factor[turn][row + 8] = FinalFactor(stats, 1, largest[1], sinks.y);
}

// Waits until what step `number` of the block's puts into shared memory may take the place of the
// step before the last.
__device__ inline void WaitForPlace(int number) {
  if (number >= 2) NamedBarrierSync(kStepSummed + number % 2, kPrefillComputeThreads);
}

// First warpgroup: scores and probabilities of all items. A step's values may use the tensor cores
// while the next step's probabilities are computed: with its scores they would take turns.
__device__ inline void ScorePrefill(const SparseAttentionArgs& args, const PrefillMaps& maps,
                                    const PrefillShare& share, float scale,
                                    PrefillShared& shared) {
  RingStage<PrefillTile::kStages> stage;
  int steps = 0;       // of all items
  bool taken = false;  // the next item's queries
  QueryRegisters query;
  int number = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) CopySharedQuery(maps, PrefillItemOf(args, number), shared);
  for (int turn = 0; number >= 0; ++turn) {
    if (!taken) {
      BarrierWait(&shared.full[stage.index], stage.parity);
      ReadQuery(shared.stages[stage.index][0], query);
      __syncwarp();
      BarrierArrive(&shared.empty[stage.index], 3);  // for all warpgroups
      stage.Advance();
    }
    taken = false;
    BarrierWait(&shared.query_full, turn % 2);
    const float2 sinks = LoadSinks(args, PrefillItemOf(args, number));
    PrefillStats stats = {{-INFINITY, -INFINITY}, {0, 0}, {-INFINITY, -INFINITY}};
    StepSums step;
    bool waiting = false;  // the step before is to be passed on
    for (bool last = false; !last; ++steps) {
      BarrierWait(&shared.full[stage.index], stage.parity);
      SharedProxyFence();
      float scores[32];
      QueueScores(query, shared.query[0], shared.stages[stage.index][0], scores);
      if (waiting) {
        PassStep((steps - 1) % 2, shared);
        AddStepSums(step, stats);
      }
      const int keys = StepKeys(shared, stage.index);
      last = keys < 0;
      WgmmaWait<0>();
      HoldRegisters(scores);
      if (waiting) NamedBarrierArrive(kStepAllowed + (steps - 1) % 2, kPrefillComputeThreads);
      if (threadIdx.x % 32 == 0) BarrierArrive(&shared.empty[stage.index], 32);
      stage.Advance();
      if (last) [[unlikely]] {
        number = PrefillNumberOf(share, turn + 1, shared);
        if (number >= 0) {
          taken = StageFull(stage, shared);  // and all have read the queries in shared memory
          if (threadIdx.x == 0) CopySharedQuery(maps, PrefillItemOf(args, number), shared);
          if (taken) ReadQuery(shared.stages[stage.index][0], query);
        }
      }
      WaitForPlace(steps);
      StoreStep(scores, last ? -keys : keys, scale, steps % 2, stats, step, shared);
      waiting = true;
    }
    if (taken) {
      __syncwarp();
      BarrierArrive(&shared.empty[stage.index], 3);
      stage.Advance();
    }
    AddStepSums(step, stats);
    StoreFactors(sinks, (steps - 1) % 2, stats, shared);
    __syncwarp();
    PassStep((steps - 1) % 2, shared);
    NamedBarrierArrive(kStepAllowed + (steps - 1) % 2, kPrefillComputeThreads);
  }
  WaitForPlace(steps);
  WaitForPlace(steps + 1);
}

}  // namespace lodestone::cuda

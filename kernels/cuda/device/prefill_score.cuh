#pragma once

#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/prefill_softmax.cuh"
#include "kernels/cuda/device/prefill_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The first warpgroup of sparse_attention_prefill.cu: scores and probabilities.
namespace lodestone::cuda {

// A operands of the scores' products.
using PrefillQuery = uint32_t[PrefillTile::kRegisterSlices * 4][4];

// Takes the queries from a stage.
__device__ inline void ReadPrefillQuery(const uint8_t* stage, PrefillQuery& query) {
  const int thread = threadIdx.x % PrefillTile::kGroupThreads;
  const int row = thread / 32 * 16 + thread % 16;
  const uint32_t from = SharedAddress(stage) + row * 128;
#pragma unroll
  for (int i = 0; i < PrefillTile::kRegisterSlices * 4; ++i) {
    const int unit = (i % 4 * 2 + thread % 32 / 16) ^ (row % 8);
    LoadMatrices(query[i], from + i / 4 * PrefillTile::kSliceBytes + unit * 16);
  }
}

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
                 (PrefillTile::kRegisterSlices + i) * 64, item.head, item.token);
  }
}

// Queues scores[64 heads, 64 keys] of the keys in a stage.
__device__ inline void QueuePrefillScores(const PrefillQuery& query, const uint8_t* shared_query,
                                          const uint8_t* stage, float (&scores)[32]) {
  const uint64_t keys = RowTileDescriptor(SharedAddress(stage));
  const uint64_t rest = RowTileDescriptor(SharedAddress(shared_query));
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < PrefillTile::kDims / 16; ++i) {
    const uint64_t b = AdvanceTile(keys, i / 4 * PrefillTile::kSliceBytes + i % 4 * 32);
    if (i < PrefillTile::kRegisterSlices * 4) {
      WgmmaRegisterA(scores, query[i], b, i != 0);
    } else {
      const int at = (i / 4 - PrefillTile::kRegisterSlices) * PrefillTile::kSliceBytes + i % 4 * 32;
      WgmmaSharedA(scores, AdvanceTile(rest, at), b, true);
    }
  }
  WgmmaCommit();
}

// A step's probabilities and factors to the warpgroups of the values.
__device__ inline void PassStep(const StepProbabilities& step, PrefillShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x % PrefillTile::kGroupThreads / 32) * 16;
  const int to_row = first_row + lane % 16;
  const uint32_t to = SharedAddress(shared.probs) + to_row * 128;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int unit = (2 * i + lane / 16) ^ (to_row % 8);
    StoreMatrices(to + unit * 16, step.probs[i][0], step.probs[i][1], step.probs[i][2],
                  step.probs[i][3]);
  }
  if (lane % 4 == 0) {
    shared.rescale[first_row + lane / 4] = step.rescale[0];
    shared.rescale[first_row + lane / 4 + 8] = step.rescale[1];
  }
  SharedProxyFence();
  NamedBarrierArrive(kStepPassed, kPrefillComputeThreads);
}

// The final factor of each head.
__device__ inline void PassFactors(const SparseAttentionArgs& args, const PrefillItem& item,
                                   const PrefillStats& stats, PrefillShared& shared) {
  const float largest[2] = {LargestOfQuad(stats.largest[0]), LargestOfQuad(stats.largest[1])};
  if (threadIdx.x % 4 != 0) return;
  const int row = threadIdx.x % PrefillTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = item.head + row + 8 * j;
    if (head >= args.num_heads) continue;
    shared.inverse[row + 8 * j] = FinalFactor(stats, j, largest[j], args.sink[head]);
  }
}

// First warpgroup: scores and probabilities of all items. A step's probabilities are passed on
// while the next step's scores are computed; its values may then use the tensor cores while that
// step's probabilities are computed.
__device__ inline void ScorePrefill(const SparseAttentionArgs& args, const PrefillMaps& maps,
                                    float scale, PrefillShared& shared) {
  RingStage<PrefillTile::kStages> stage;
  uint32_t query_parity = 0;
  bool passed = false;  // a step, at least
  bool taken = false;   // the next item's queries
  PrefillQuery query;
  if (threadIdx.x == 0) {
    CopySharedQuery(maps, PrefillItemOf(args, static_cast<int>(blockIdx.x)), shared);
  }
  for (int number = blockIdx.x; number < NumPrefillItems(args); number += gridDim.x) {
    if (!taken) {
      BarrierWait(&shared.full[stage.index], stage.parity);
      ReadPrefillQuery(shared.stages[stage.index][0], query);
      __syncwarp();
      BarrierArrive(&shared.empty[stage.index], 3);  // for all warpgroups
      stage.Advance();
    }
    taken = false;
    BarrierWait(&shared.query_full, query_parity);
    query_parity ^= 1;
    PrefillStats stats = {{-INFINITY, -INFINITY}, {0, 0}, {-INFINITY, -INFINITY}};
    StepProbabilities step;
    bool waiting = false;  // `step` is to be passed on
    for (bool last = false; !last;) {
      BarrierWait(&shared.full[stage.index], stage.parity);
      SharedProxyFence();
      float scores[32];
      QueuePrefillScores(query, shared.query[0], shared.stages[stage.index][0], scores);
      if (waiting) {
        if (passed) NamedBarrierSync(kStepSummed, kPrefillComputeThreads);
        PassStep(step, shared);
        passed = true;
        AddStepSums(step, stats);
      }
      const int keys = StepKeys(shared, stage.index);
      last = keys < 0;
      WgmmaWait<0>();
      HoldRegisters(scores);
      if (waiting) NamedBarrierArrive(kStepAllowed, kPrefillComputeThreads);
      if (threadIdx.x % 32 == 0) BarrierArrive(&shared.empty[stage.index], 32);
      stage.Advance();
      if (last && number + static_cast<int>(gridDim.x) < NumPrefillItems(args)) {
        taken = StageFull(stage, shared);  // and all have read the queries in shared memory
        if (threadIdx.x == 0) {
          CopySharedQuery(maps, PrefillItemOf(args, number + gridDim.x), shared);
        }
        if (taken) ReadPrefillQuery(shared.stages[stage.index][0], query);
      }
      ToStepProbabilities(scores, last ? -keys : keys, scale, stats, step);
      waiting = true;
    }
    if (taken) {
      __syncwarp();
      BarrierArrive(&shared.empty[stage.index], 3);
      stage.Advance();
    }
    AddStepSums(step, stats);
    if (passed) NamedBarrierSync(kStepSummed, kPrefillComputeThreads);
    PassFactors(args, PrefillItemOf(args, number), stats, shared);
    __syncwarp();
    PassStep(step, shared);
    passed = true;
    NamedBarrierArrive(kStepAllowed, kPrefillComputeThreads);
  }
  if (passed) NamedBarrierSync(kStepSummed, kPrefillComputeThreads);
}

}  // namespace lodestone::cuda

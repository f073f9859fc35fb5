#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_math.cuh"
#include "kernels/cuda/device/attention_token.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/matrix_move.cuh"
#include "kernels/cuda/device/numeric.cuh"

// Scores of 16 keys and 16 heads in sparse_attention_token.cu, from products to what the blocks of
// a cluster tell each other. A warp has a group: the thread keys r = lane / 4 and r + 8 of heads 8
// i + 2 (lane % 4) + j as number 4 i + j, and 2 more for key r + 8; a reference of these heads as
// number 2 i + j.
namespace lodestone::cuda {

using GroupScores = float[8];
using GroupReferences = float[4];

// The larger score of this thread's two keys.
__device__ inline float LargerScore(const GroupScores& scores, int head) {
  const int at = head / 2 * 4 + head % 2;
  return fmaxf(scores[at], scores[at + 2]);
}

// Products become rounded scores (RoundScores); those of keys from `valid_keys` on -inf. Whether
// probabilities may be relative to 0: of every head the largest score is so near it that neither
// fp32 nor bf16 leaves its range.
__device__ inline bool RoundGroup(GroupScores& scores, int valid_keys, float scale) {
  constexpr float kNear = 60;
  constexpr uint32_t kAllHeads = 0xffff;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scores[i] = fmaf(scores[i], scale, kScoreRounder);
    if (lane / 4 + i % 4 / 2 * 8 >= valid_keys) scores[i] = -INFINITY;
  }
  bool above = false;
  uint32_t heads = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float larger = LargerScore(scores, i);
    above = above || !(larger <= kScoreRounder + kNear);  // NaN too
    if (larger >= kScoreRounder - kNear) heads |= 1u << i;
  }
  return __reduce_or_sync(~0u, heads << lane % 4 * 4 | (above ? kAllHeads + 1 : 0)) == kAllHeads;
}

// Of a group alone.
__device__ inline void FindReferences(const GroupScores& scores, GroupReferences& references) {
#pragma unroll
  for (int i = 0; i < 4; ++i) references[i] = LargerScore(scores, i);
#pragma unroll
  for (int lanes = 4; lanes <= 16; lanes *= 2) {
#pragma unroll
    for (float& x : references) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  }
#pragma unroll
  for (float& x : references) x = ceilf(x - kScoreRounder);
}
// Of all groups, once these are there.
__device__ inline void JoinReferences(const TokenShared& shared, int num_groups,
                                      GroupReferences& references) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (float& x : references) x = -INFINITY;
#pragma unroll 1
  for (int group = lane / 4; group < num_groups; group += 8) {
    const float4 of_group = shared.references[group][lane % 4];
    references[0] = fmaxf(references[0], of_group.x);
    references[1] = fmaxf(references[1], of_group.y);
    references[2] = fmaxf(references[2], of_group.z);
    references[3] = fmaxf(references[3], of_group.w);
  }
#pragma unroll
  for (int lanes = 4; lanes <= 16; lanes *= 2) {
#pragma unroll
    for (float& x : references) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  }
}

// Score `i` as a probability.
__device__ inline float Probability(const GroupScores& scores, int i,
                                    const GroupReferences& references) {
  return Exp2(scores[i] - (references[i / 4 * 2 + i % 2] + kScoreRounder));
}

// The scores of a thread, for the thread with the same number in another warpgroup.
__device__ inline void StoreScores(const GroupScores& scores, TokenShared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % TokenTile::kGroupThreads;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    shared.own_scores[i][thread] = {scores[4 * i], scores[4 * i + 1], scores[4 * i + 2],
                                    scores[4 * i + 3]};
  }
}
__device__ inline void LoadScores(const TokenShared& shared, GroupScores& scores) {
  const int thread = static_cast<int>(threadIdx.x) % TokenTile::kGroupThreads;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 words = shared.own_scores[i][thread];
    scores[4 * i] = words.x;
    scores[4 * i + 1] = words.y;
    scores[4 * i + 2] = words.z;
    scores[4 * i + 3] = words.w;
  }
}

// Stores a group's probabilities, for CopyGroups.
__device__ inline void StoreGroup(const GroupScores& scores, const GroupReferences& references,
                                  bool far, GroupResult& result) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // heads + 8 (i % 2), keys + 8 (i / 2)
    const int first = i % 2 * 4 + i / 2 * 2;
    words[i] = TransposeMatrix(PackBf16(Probability(scores, first, references),
                                        Probability(scores, first + 1, references)));
  }
  result.probs[lane] = {words[0], words[1], words[2], words[3]};
  if (lane == 0) result.far = {far, 0, 0, 0};
  SharedProxyFence();
}

// Copies a block's `count` groups of `num_groups` to all other blocks and arrives at `full`, which
// says when all groups are here. By the first warpgroup, which has met since they were stored.
__device__ inline void CopyGroups(const GroupResult* own, int count, int num_groups, int rank,
                                  uint64_t* full) {
  constexpr int kWarps = TokenTile::kGroupThreads / 32;
  const int turn = static_cast<int>(threadIdx.x / 32) + static_cast<int>(threadIdx.x % 32) * kWarps;
  if (count > 0 && turn < TokenTile::kBlocks - 1) {
    const int peer = (rank + 1 + turn) % TokenTile::kBlocks;  // each begins with another one
    CopyToPeer(ClusterAddress(own, peer), own, count * static_cast<uint32_t>(sizeof(*own)),
               ClusterAddress(full, peer));
  }
  __syncwarp();
  if (threadIdx.x == 0) {
    BarrierArriveExpect(full, (num_groups - count) * static_cast<uint32_t>(sizeof(*own)));
  } else {
    BarrierArrive(full);
  }
}

// Sends a group's references to all blocks, and what the denominators need to the block of the
// head: sums of neighbours' probabilities, relative to these references.
__device__ inline void SendSums(const GroupScores& scores, int group, TokenShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane / 4;
  GroupReferences references;
  FindReferences(scores, references);
#pragma unroll
  for (int peer = row; peer < TokenTile::kBlocks; peer += 8) {
    StoreAsync(ClusterAddress(&shared.references[group][lane % 4], peer),
               float4{references[0], references[1], references[2], references[3]},
               ClusterAddress(&shared.references_full, peer));
  }
  const int odd = row % 2;  // rows 2 i and 2 i + 1 have the same sums: each keeps one head's
  auto& own = shared.own_sums[threadIdx.x % TokenTile::kGroupThreads / 32];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sums[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float probability = Probability(scores, 4 * i + j, references);
      sums[j] = probability + __shfl_xor_sync(~0u, probability, 4);
    }
    own[8 * i + 2 * (lane % 4) + odd][row / 2] = {odd != 0 ? sums[1] : sums[0],
                                                  odd != 0 ? sums[3] : sums[2]};
  }
  __syncwarp();
  const int head = lane / 2;
  StoreAsync(ClusterAddress(&shared.pair_sums[group][lane % 2 * 2], head),
             reinterpret_cast<const float4*>(own)[lane], ClusterAddress(&shared.sums_full, head));
}

// The reference of `head` of a group.
__device__ inline float ReferenceOf(const TokenShared& shared, int group, int head) {
  return reinterpret_cast<const float*>(
      shared.references[group])[head % 8 / 2 * 4 + head / 8 * 2 + head % 2];
}

}  // namespace lodestone::cuda

#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/attention_cluster.cuh"
#include "kernels/cuda/device/attention_keys.cuh"
#include "kernels/cuda/sparse_attention.h"

// What a thread block of sparse_attention_token.cu keeps in shared memory, and how keys and values
// get there.
namespace lodestone::cuda {

struct TokenTile {
  static constexpr int kHeads = 16;
  static constexpr int kBlocks = 16;
  static constexpr int kDims = kAttentionDims;
  static constexpr int kSlices = kDims / 64;
  static constexpr int kKeyPitch = kLatentBytes + 16;  // eight rows in different banks
  static constexpr int kBlockDims = kDims / kBlocks;   // of the output
  static constexpr int kValueRowBytes = 2 * kBlockDims;
  static constexpr int kRopeDims = kAttentionRopeDims;
  static constexpr int kGroupKeys = 16;   // of one product of the values
  static constexpr int kBlockGroups = 4;  // one for each warp that computes
  static constexpr int kMaxGroups = kBlocks * kBlockGroups;
  static constexpr int kMaxKeys = kMaxGroups * kGroupKeys;
  static constexpr int kValueGroups = 80;  // whole batches
  static constexpr int kStepGroups = kAttentionKeys / kGroupKeys;
  static constexpr int kKeyWarps = 8;    // that copy keys
  static constexpr int kSumGroups = 20;  // of one batch of products of the values
  static constexpr int kGroupThreads = 128;
  static constexpr int kListThreads = 2 * kGroupThreads;  // that list the rows of all keys
  static constexpr int kThreads = 3 * kGroupThreads;
  // Registers of a thread: 65,536 a processor.
  static constexpr int kComputeRegisters = 240;
  static constexpr int kOtherRegisters = 128;
  static constexpr int kEntriesEach = kMaxKeys / kListThreads;
  static_assert(kMaxKeys == kAttentionKeys * MaxClusterSteps({kHeads, kBlocks}));
  static_assert(kValueRowBytes == 64, "NarrowTileDescriptor");
};

// Probabilities of 16 keys as the words of an A operand (device/wgmma.cuh), each where the lane
// finds it that needs it.
struct alignas(16) GroupResult {
  uint4 probs[32];
  uint4 far;  // x: not 0 where scores are too far from 0 for probabilities relative to 0
};

struct alignas(1024) TokenShared {
  union {
    uint8_t keys[kAttentionKeys][TokenTile::kKeyPitch];
    GroupResult exact[TokenTile::kMaxGroups];  // relative to the largest score, where it is needed
  };
  alignas(1024) uint8_t query[TokenTile::kSlices][TokenTile::kHeads * 128];
  // This block's dims; zeros behind the last group, as far as its batch goes.
  uint8_t values[TokenTile::kValueGroups * TokenTile::kGroupKeys * TokenTile::kValueRowBytes];
  GroupResult results[TokenTile::kMaxGroups];  // relative to 0
  // Each group's, in fours: of heads 2 i, 2 i + 1, 2 i + 8, 2 i + 9.
  float4 references[TokenTile::kMaxGroups][TokenTile::kHeads / 4];
  // Of head `rank`: sums of the probabilities of keys 2 i, 2 i + 1 and of the two 8 further.
  float2 pair_sums[TokenTile::kMaxGroups][4];
  float4 own_scores[2][TokenTile::kGroupThreads];  // rounded, of the computing threads
  float2 own_sums[TokenTile::kBlockGroups][TokenTile::kHeads][4];  // the same of a warp's group
  const uint8_t* rows[TokenTile::kMaxKeys];
  int32_t pages[kSharedPages];
  float step_sums[TokenTile::kMaxGroups / TokenTile::kStepGroups];
  float2 inverse[TokenTile::kHeads];  // 1 / denominator and the reference that it is relative to
  float2 angles[TokenTile::kBlockDims / 2];
  uint64_t query_full;
  uint64_t keys_full[TokenTile::kBlockGroups];
  uint64_t values_full;
  uint64_t results_full;
  uint64_t exact_full;
  uint64_t references_full;
  uint64_t sums_full;
  uint64_t inverse_full;
};
static_assert(sizeof(TokenShared) <= 227 * 1024);

// The groups of 16 keys that fall to a block, of the most that a token of the launch may have.
struct OwnGroups {
  int first;
  int end;
};
__device__ inline OwnGroups FindOwnGroups(const SparseAttentionArgs& args, int rank) {
  const int groups =
      (static_cast<int>(args.max_keys) + TokenTile::kGroupKeys - 1) / TokenTile::kGroupKeys;
  const int each = groups / TokenTile::kBlocks;
  const int more = groups % TokenTile::kBlocks;
  const int first = rank * each + min(rank, more);
  return {first, first + each + (rank < more)};
}

// A key of this block that this thread copies: eight threads of each of the first warps have one.
struct OwnKey {
  int row;              // of the block's keys; -1: none
  const uint8_t* from;  // null: another block's, or there is none
};
__device__ inline OwnKey FindOwnKey(const SparseAttentionArgs& args, int64_t token,
                                    const OwnGroups& groups, const TokenKeys& keys,
                                    const PageTable& pages) {
  constexpr int kEach = kAttentionKeys / TokenTile::kKeyWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (lane >= kEach || warp >= TokenTile::kKeyWarps) return {-1, nullptr};
  OwnKey own = {warp * kEach + lane, nullptr};
  const int key = groups.first * TokenTile::kGroupKeys + own.row;
  if (key >= groups.end * TokenTile::kGroupKeys) return own;
  int32_t entry[1];
  LoadEntries<1>(args, token, keys, key - keys.num_window, entry);
  if (key < keys.num_window) own.from = FindWindowLatent(args, keys, key);
  if (entry[0] >= 0) own.from = FindEntryLatent(args, pages, entry[0]);
  return own;
}
__device__ inline void CopyOwnKey(const OwnKey& own, TokenShared& shared) {
  if (own.row < 0) return;
  uint64_t* const full = &shared.keys_full[own.row / TokenTile::kGroupKeys];
  if (own.from == nullptr) {
    BarrierArrive(full);
    return;
  }
  BarrierArriveExpect(full, kLatentBytes);
  CopyBulk(shared.keys[own.row], own.from, kLatentBytes, full);
}

// This block's dims of all keys, by the second warpgroup.
__device__ inline void LoadTokenValues(int num_keys, int num_groups, int rank,
                                       TokenShared& shared) {
  constexpr int kUnits = TokenTile::kValueRowBytes / 16;  // of a row
  const int thread = static_cast<int>(threadIdx.x) % TokenTile::kGroupThreads;
  const int unit = thread % kUnits;
#pragma unroll 8
  for (int key = thread / kUnits; key < num_groups * TokenTile::kGroupKeys;
       key += TokenTile::kGroupThreads / kUnits) {
    const uint32_t to = SharedAddress(shared.values) + key * TokenTile::kValueRowBytes +
                        (unit ^ (key / 2 % kUnits)) * 16;
    CopyAsync16<0, 0>(
        to, RowOf(shared.rows, num_keys, key) + rank * TokenTile::kValueRowBytes + unit * 16,
        kEvictFirst);
  }
  CopyAsyncArrive(&shared.values_full);
  constexpr int kGroupBytes = TokenTile::kGroupKeys * TokenTile::kValueRowBytes;
  const int end_group =
      (num_groups + TokenTile::kSumGroups - 1) / TokenTile::kSumGroups * TokenTile::kSumGroups;
  for (int i = num_groups * kGroupBytes / 16 + thread; i < end_group * kGroupBytes / 16;
       i += TokenTile::kGroupThreads) {
    reinterpret_cast<uint4*>(shared.values)[i] = {};
  }
  SharedProxyFence();
  BarrierArrive(&shared.values_full);
}

}  // namespace lodestone::cuda

#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_integers.cuh"
#include "kernels/cuda/device/index_ticket.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/widen_keys.cuh"

// The warps of the index scores kernel that feed its math warpgroups: keys, queries, which fp4
// keys are integers.
namespace lodestone::cuda {

struct IndexScoresMaps {
  CUtensorMap keys;   // [P, 64, payload bytes], 128 bytes (kFp4: 64) x 64 rows a box
  CUtensorMap query;  // bf16 [T * H_i, 128], 64 x kColumns a box
};

// Queries and weights of the group into buffer `index` % 2.
template <typename Tile>
__device__ void LoadQuery(const IndexScoresArgs& args, const IndexScoresMaps& maps, int token,
                          int tokens, int index, IndexScoresShared<Tile>& shared) {
  const int buffer = index % 2;
  uint64_t* const full = &shared.query_full[buffer];
  const uint32_t weight_bytes = static_cast<uint32_t>(tokens * args.num_heads * 4);
  BarrierWait(&shared.query_empty[buffer], (index / 2 + 1) % 2);
  BarrierArriveExpect(full, 2 * Tile::kQueryHalfBytes + weight_bytes);
  for (int half = 0; half < 2; ++half) {
    CopyBox2(shared.query[buffer] + half * Tile::kQueryHalfBytes, &maps.query, full, half * 64,
             static_cast<int>(token * args.num_heads));
  }
  CopyBulk(shared.weight[buffer], args.weight + token * args.num_heads, weight_bytes, full);
}

// The query thread: queries of all token groups of this block. They may come from the kernel
// before.
template <typename Tile>
__device__ void LoadQueries(const IndexScoresArgs& args, const IndexScoresMaps& maps,
                            const IndexShare& share, IndexScoresShared<Tile>& shared) {
  int index = 0;
  ForEachPart(args, share, shared, [&](const IndexPart& part) {
    if (part.slot >= 0) BarrierArrive(&shared.item_empty[part.slot]);
    if (!part.new_group) return;
    if (index == 0) WaitForPreviousKernel();  // which may write queries and weights
    LoadQuery(args, maps, part.token, part.group.tokens, index++, shared);
  });
}

// Key tile `number` of this block, which is page `page`.
template <typename Tile>
__device__ void LoadKeys(const IndexScoresArgs& args, const IndexScoresMaps& maps, int page,
                         uint32_t number, IndexScoresShared<Tile>& shared) {
  const uint32_t stage = number % Tile::kStages;
  const uint32_t parity = (number / Tile::kStages + 1) % 2;
  uint64_t* const full = &shared.key_full[stage];
  BarrierWait(&shared.key_empty[stage], parity);
  uint64_t* scale_full = full;
  if constexpr (Tile::kHasIntegers) {
    scale_full = &shared.integers.scale_full[stage];
    BarrierArriveExpect(scale_full, Tile::kScaleBytes);
    BarrierArriveExpect(full, Tile::kPayloadBytes);
  } else {
    BarrierArriveExpect(full, Tile::kPayloadBytes + Tile::kScaleBytes);
  }
  if constexpr (Tile::kWidens) {
    CopyBulk(shared.scale[stage], args.keys.scale + page * args.keys.scale_block_stride,
             Tile::kScaleBytes, scale_full);
  }
  // Decode reads a key once; tokens of a prefill chunk read it again.
  const auto copy = Tile::kTokens == 1 ? CopyBox3Once : CopyBox3;
  copy(shared.keys[stage], &maps.keys, full, 0, 0, page);
  if constexpr (Tile::kFormat == IndexKeyFormat::kBf16) {
    copy(shared.keys[stage] + Tile::kPayloadBytes / 2, &maps.keys, full, 128, 0, page);
  }
}

// One key warp's turns in a part of the block's equal share.
template <typename Tile>
__device__ void LoadShare(const IndexScoresArgs& args, const IndexScoresMaps& maps, int warp,
                          int first_seq, const IndexPart& part, IndexScoresShared<Tile>& shared) {
  constexpr int kWarps = Tile::kKeyWarps;
  const int lane = threadIdx.x % 32;
  const int seq = part.number == 0 ? first_seq : args.token_seq[part.token];
  const int32_t* pages = args.block_table + seq * args.max_pages + part.tile;
  // Lane i looks up the page of this warp's i-th tile from `first` on.
  for (int first = TurnOf<kWarps>(warp, part.number); first < part.count; first += 32 * kWarps) {
    const int at = first + lane * kWarps;
    const int my_page = at < part.count ? pages[at] : 0;
    // What the compiler knows to be the same in all lanes, in a lane that it knows to be alone,
    // goes to the copy engine without a loop over lanes.
    const uint32_t number = __shfl_sync(~0u, part.number + first, 0);
    const int left = __shfl_sync(~0u, (part.count - first + kWarps - 1) / kWarps, 0);
    const int last = __shfl_sync(~0u, part.group.tiles - 1 - part.tile - first, 0);
    for (int i = 0; i < min(32, left); ++i) {
      const int page = __shfl_sync(~0u, my_page, i);
      if (i * kWarps == last) WaitForPreviousKernel();
      if (ElectLane()) LoadKeys(args, maps, page, number + i * kWarps, shared);
    }
  }
}

// The same in a dealt part.
template <typename Tile>
__device__ void LoadItem(const IndexScoresArgs& args, const IndexScoresMaps& maps, int warp,
                         const IndexPart& part, IndexScoresShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  const int my_page = lane < part.count ? shared.items[part.slot].pages[lane] : 0;
  ReleaseItem(part.slot, shared);
  WaitForPreviousKernel();
  for (int i = TurnOf<Tile::kKeyWarps>(warp, part.number); i < part.count; i += Tile::kKeyWarps) {
    const int page = __shfl_sync(~0u, my_page, i);
    if (lane == 0) LoadKeys(args, maps, page, part.number + i, shared);
  }
}

// One key warp: its turns among the tiles of this block.
template <typename Tile>
__device__ void LoadTiles(const IndexScoresArgs& args, const IndexScoresMaps& maps, int warp,
                          const IndexShare& share, IndexScoresShared<Tile>& shared) {
  if (!args.old_keys) WaitForPreviousKernel();
  ForEachPart(args, share, shared, [&](const IndexPart& part) {
    if (part.slot < 0) {
      LoadShare(args, maps, warp, share.first_seq, part, shared);
    } else {
      LoadItem(args, maps, warp, part, shared);
    }
  });
}

// The integers of key tile `number` of this block. By a whole warp. What the stage's last tile left
// is no longer needed when the scales arrive.
template <typename Tile>
__device__ void FindIntegerTile(uint32_t number, IndexScoresShared<Tile>& shared) {
  auto& integers = shared.integers;
  const int lane = threadIdx.x % 32;
  const uint32_t stage = number % Tile::kStages;
  BarrierWait(&integers.scale_full[stage], number / Tile::kStages % 2);
  const uint2 scales = LoadSharedPair(SharedAddress(shared.scale[stage]) + lane * 8);
  const IntegerRows rows = FindIntegerRows<Tile::kSharedTables>(scales);
  reinterpret_cast<uint2*>(integers.multipliers[stage])[lane] = rows.multipliers;
  reinterpret_cast<float2*>(integers.factor[stage])[lane] = rows.factors;
  BarrierArrive(&shared.key_full[stage]);
}

// An integer warp: its turns among the tiles of this block. One warp could not keep up, and the
// first of the two loads queries, too, unless math threads do.
template <typename Tile>
__device__ void FindIntegers(const IndexScoresArgs& args, const IndexScoresMaps& maps, int warp,
                             const IndexShare& share, IndexScoresShared<Tile>& shared) {
  int index = 0;
  ForEachPart(args, share, shared, [&](const IndexPart& part) {
    if (!Tile::kFetchesQueries && warp == 0) {
      if (index == 0) WaitForPreviousKernel();  // which may write queries and weights
      if (threadIdx.x % 32 == 0) {
        LoadQuery(args, maps, part.token, part.group.tokens, index, shared);
      }
      ++index;
    }
    __syncwarp();
    for (int i = TurnOf<Tile::kIntegerWarps>(warp, part.number); i < part.count;
         i += Tile::kIntegerWarps) {
      FindIntegerTile(part.number + i, shared);
    }
  });
}

}  // namespace lodestone::cuda

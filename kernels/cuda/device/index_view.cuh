#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_integers.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/widen_keys.cuh"

// Where a math thread of the index scores kernel finds what it reads, and where its scores go.
namespace lodestone::cuda {

// A tile of fp4 keys that a warpgroup has waited for.
struct ArrivedKeys {
  uint32_t stages;          // of the ring, from the warpgroup's first one
  uint32_t multipliers[2];  // of a thread's two rows
};

// What a math thread knows of its block's shared memory, found once: the compiler would find it
// again for every tile.
template <typename Tile>
struct MathView {
  using Shared = IndexScoresShared<Tile>;
  using Integers = IntegersShared<Tile>;
  static constexpr uint32_t kIntegers = offsetof(Shared, integers);
  uint32_t base;             // shared address
  KeyLane lane;              // kFp8
  IntegerLane integer_lane;  // kFp4
  __device__ uint32_t table_low() const {
    return LoadShared(base + static_cast<uint32_t>(offsetof(Shared, e2m1_table_low)));
  }
  __device__ uint32_t keys(uint32_t stage) const {
    return base + static_cast<uint32_t>(offsetof(Shared, keys)) + stage * Tile::kPayloadBytes;
  }
  __device__ uint32_t scale(uint32_t stage) const {
    return base + static_cast<uint32_t>(offsetof(Shared, scale)) + stage * (kTileEntries * 4);
  }
  // This thread's byte of the multipliers of its first row.
  __device__ uint32_t multipliers(uint32_t stage) const {
    return base + kIntegers + static_cast<uint32_t>(offsetof(Integers, multipliers)) +
           stage * (kTileEntries * 4) + integer_lane.multiplier;
  }
  // The table of a byte of IntegerRows::multipliers.
  __device__ IntegerTable Table(uint32_t multiplier) const {
    if constexpr (!Tile::kSharedTables) return IntegerTable(multiplier / 16);
    const uint32_t tables = base + kIntegers + static_cast<uint32_t>(offsetof(Integers, tables));
    return IntegerTable(LoadSharedQuad(tables + multiplier));
  }
  // The factor of the row whose score this thread may store.
  __device__ uint32_t factor(uint32_t stage) const {
    return base + kIntegers + static_cast<uint32_t>(offsetof(Integers, factor)) +
           stage * (kTileEntries * 4) + integer_lane.factor;
  }
  // What a warpgroup reads of `stage`.
  __device__ IntegerPlaces PlacesOf(uint32_t stage) const {
    return {keys(stage) + integer_lane.keys, multipliers(stage), factor(stage),
            base + static_cast<uint32_t>(offsetof(Shared, key_full)) + stage * 8};
  }
  // Waits for the warpgroup's tile of turn `turn`; `start` are its places in the first stage.
  __device__ ArrivedKeys WaitForTurn(const IntegerPlaces& start, uint32_t turn) const {
    constexpr uint32_t kTurns = Tile::kStages / Tile::kMathGroups;  // stages of a warpgroup
    uint32_t stages = turn % kTurns * Tile::kMathGroups;
    asm volatile("" : "+r"(stages));  // else the compiler finds it again for every use
    const IntegerPlaces at = start.Further(stages);
    BarrierWait(at.barrier, turn / kTurns % 2);
    return {stages, {LoadSharedByte(at.multipliers), LoadSharedByte(at.multipliers + 8 * 4)}};
  }
  // Gives a stage back, by its key_full.
  __device__ void ReleaseKeysAt(uint32_t key_full) const {
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 != 0) return;
    BarrierArrive(key_full + static_cast<uint32_t>(offsetof(Shared, key_empty)) -
                  static_cast<uint32_t>(offsetof(Shared, key_full)));
  }
  __device__ void WaitForKeys(uint32_t number) const {
    BarrierWait(
        base + static_cast<uint32_t>(offsetof(Shared, key_full)) + number % Tile::kStages * 8,
        number / Tile::kStages % 2);
  }
  __device__ void ReleaseKeys(uint32_t number) const {
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 != 0) return;
    BarrierArrive(base + static_cast<uint32_t>(offsetof(Shared, key_empty)) +
                  number % Tile::kStages * 8);
  }
};

// Where this thread stores scores of a token group. Of the four threads that hold a row's sums each
// stores one: (token, r), (token, r + 8), then the same of the second token.
struct ScoreRow {
  float* out;   // of the token
  int visible;  // 0 if this thread stores nothing
  int first;    // entry of tile 0
};
__device__ inline ScoreRow FindScoreRow(const IndexScoresArgs& args, int token, int tokens,
                                        int row) {
  const int which = threadIdx.x % 4;
  if (which >= 2 * tokens) return {args.scores, 0, 0};
  const int64_t at = token + which / 2;
  return {args.scores + at * args.score_stride, args.num_visible[at], row + 8 * (which % 2)};
}

// The first of this thread's two rows of a tile.
__device__ inline int FirstRow() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

}  // namespace lodestone::cuda

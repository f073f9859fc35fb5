#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_filter.cuh"

namespace lodestone::cuda::top_k {

// A row that passes through a ring of batches in shared memory, each thread copying and reading its
// own places, so that no barrier is needed. A warp that waits for one batch of RegisterRow waits
// for all that it has on its way, since the loads count for one scoreboard; here the others stay on
// their way.
struct RingRow {
  static constexpr int kSlots = 4;
  static constexpr int kBlocks = 1;  // of a processor
  static constexpr int kStages = 4;
  struct Ring {
    float4 slots[kStages][kSlots][Tile::kThreads];
  };
  static constexpr int kSharedBytes = sizeof(Ring);
  RowPart<kSlots> part;
  float4 fours[kSlots];  // the first batch
  uint32_t places;       // shared memory address of this thread's in the ring
  int next = 0;          // batch to copy next

  template <typename Team>
  __device__ RingRow(const TopKArgs& args, int64_t row, int visible, const Team& team, void* ring)
      : part(args, row, visible, team),
        places(SharedAddress(&static_cast<Ring*>(ring)->slots[0][0][threadIdx.x])) {}

  __device__ uint32_t Place(int stage, int slot) const {
    return places + (stage * kSlots + slot) * int{Tile::kThreads * sizeof(float4)};
  }
  // Starts to copy the next batch; nothing of it if the piece has ended.
  __device__ void Copy(int stage) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int at = part.At(next, i);
      CopyAsyncOnce16(Place(stage, i), part.scores + 4 * int64_t{at}, at < part.end ? 16 : 0);
    }
    CopyAsyncCommit();
    ++next;
  }
  // The oldest batch that is on its way. REQUIRES: kStages are.
  __device__ void Take(int batch, int stage, float4 (&to)[kSlots]) const {
    CopyAsyncWait<kStages - 1>();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) to[i] = LoadSharedFloats(Place(stage, i));
    part.DropOthers(batch, to);
  }

  __device__ void Load() {
    Copy(0);
    __syncthreads();  // the first batches of all warps come first: the bound waits for them
#pragma unroll
    for (int i = 1; i < kStages; ++i) Copy(i);
  }
  __device__ void TakeFirst() {
    Take(0, 0, fours);
    Copy(0);
  }
  __device__ void Prefetch() const {}

  // Keeps the items of this warp; their number, which may exceed kWarpItems: then some are missing.
  __device__ int Filter(float bound, TopKShared& shared) {
    const ItemPlaces to(shared);
    int count = KeepItems<1>(fours, part.At(0, 0), bound, 0, to);
    int stage = 1;
#pragma unroll 1
    for (int batch = 1; batch < part.num_batches; ++batch) {
      float4 taken[kSlots];
      Take(batch, stage, taken);
      count = KeepItems<1>(taken, part.At(batch, 0), bound, count, to, [&] { Copy(stage); });
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    CopyAsyncWait<0>();  // of nothing: the copies of batches that are none
    count = KeepTail(part, bound, count, to);
    __syncwarp();
    return count;
  }
};

}  // namespace lodestone::cuda::top_k

#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_row.cuh"
#include "kernels/cuda/device/warp_scan.cuh"

// From the items of kernels/cuda/top_k.cu to the candidates of a row in ascending order of entries.
namespace lodestone::cuda::top_k {

__device__ inline uint32_t NumReaching(const float4& four, float bound) {
  return uint32_t{four.x >= bound} + uint32_t{four.y >= bound} + uint32_t{four.z >= bound} +
         uint32_t{four.w >= bound};
}

// The scores of one warp's items that reach the bound. A lane keeps two items, of most warps all.
struct WarpCandidates {
  const TopKShared& shared;
  int count;  // of the items
  float bound;
  float4 own[2];
  int entries[2];
  uint32_t before;  // of the first 32 items those before this lane's, and 65,536 times the same of
                    // the next 32
  uint32_t all;     // of both halves, packed in this way
  uint32_t total;

  __device__ WarpCandidates(int num_items, float row_bound, const TopKShared& block)
      : shared(block), count(num_items), bound(row_bound) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 32 * i + lane;
      own[i] = NoScores();
      if (at < count) own[i] = shared.items[warp][at];
      if (at < count) entries[i] = shared.item_entries[warp][at];
    }
    const uint32_t mine = NumReaching(own[0], bound) + (NumReaching(own[1], bound) << 16);
    const uint32_t upto = ScanWarp(mine);
    before = upto - mine;
    all = __shfl_sync(~0u, upto, 31);
    total = (all & 0xffff) + (all >> 16);
    if (count > 64) {
      uint32_t others = 0;
#pragma unroll 1
      for (int at = 64 + lane; at < count; at += 32) {
        others += NumReaching(shared.items[warp][at], bound);
      }
      total += __reduce_add_sync(~0u, others);
    }
  }
  // f(is, number, candidate) of each score: whether it is one of them, which are numbered in
  // ascending order of entries.
  template <typename F>
  __device__ void ForEach(const F& f) const {
    Visit(own[0], entries[0], before & 0xffff, f);
    if (count <= 32) return;
    Visit(own[1], entries[1], (all & 0xffff) + (before >> 16), f);
    if (count <= 64) return;
    const int warp = threadIdx.x / 32;
    uint32_t done = (all & 0xffff) + (all >> 16);
#pragma unroll 1
    for (int base = 64; base < count; base += 32) {
      const int at = base + static_cast<int>(threadIdx.x) % 32;
      const float4 four = at < count ? shared.items[warp][at] : NoScores();
      const int entry = at < count ? shared.item_entries[warp][at] : 0;
      const uint32_t mine = NumReaching(four, bound);
      const uint32_t upto = ScanWarp(mine);
      Visit(four, entry, done + upto - mine, f);
      done += __shfl_sync(~0u, upto, 31);
    }
  }
  template <typename F>
  __device__ void Visit(const float4& four, int entry, uint32_t number, const F& f) const {
    const float scores[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is = scores[i] >= bound;
      f(is, number, Candidate{scores[i], entry + i});
      number += is;
    }
  }
};

// Puts the candidates of one block together: their number, which may exceed kMaxCandidates: then
// some are missing.
__device__ inline uint32_t Gather(int num_items, float bound, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const bool complete = num_items <= Tile::kWarpItems;
  const WarpCandidates mine(complete ? num_items : 0, bound, shared);
  if (lane == 0) shared.warp_sums[warp] = complete ? mine.total : Tile::kMaxCandidates + 1;
  __syncthreads();
  const uint32_t sum = lane < Tile::kWarps ? shared.warp_sums[lane] : 0;
  const uint32_t total = __reduce_add_sync(~0u, sum);
  if (total > Tile::kMaxCandidates) return total;
  const uint32_t to =
      SharedAddress(shared.candidates) + 8 * __reduce_add_sync(~0u, lane < warp ? sum : 0);
  mine.ForEach([&](bool is, uint32_t number, const Candidate& candidate) {
    StoreSharedIf(is, to + 8 * number,
                  uint2{__float_as_uint(candidate.score), static_cast<uint32_t>(candidate.entry)});
  });
  __syncthreads();
  return total;
}

}  // namespace lodestone::cuda::top_k

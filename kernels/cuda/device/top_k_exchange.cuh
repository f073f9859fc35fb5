#pragma once

#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/top_k_gather.cuh"

// The way of the candidates of kernels/cuda/top_k.cu to the first block of a cluster.
namespace lodestone::cuda::top_k {

// Of a run of which some are missing.
constexpr uint32_t kIncompleteRun = 0xffffu << 16;

// The blocks are a power of two, and dividing by what is not constant takes 100 cycles and more.
__device__ inline int Log2(int blocks) { return 31 - __clz(blocks); }
// Candidates that a block may send.
__device__ inline uint32_t PlacesOfBlock(int blocks) {
  return Tile::kMaxCandidates >> Log2(blocks);
}

// Sends this warp's candidates to the first block.
__device__ inline void SendCandidates(int num_items, float bound, int blocks,
                                      const BlockCluster& team, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint32_t most = PlacesOfBlock(blocks);
  const uint32_t barrier = ClusterAddress(&shared.lists_barrier, 0);
  const bool complete = num_items <= Tile::kWarpItems;
  const WarpCandidates mine(complete ? num_items : 0, bound, shared);
  uint32_t first = 0;
  if (lane == 0) first = static_cast<uint32_t>(atomicAdd(&shared.num_sent, mine.total));
  first = __shfl_sync(~0u, first, 0);
  const bool fits = complete && first + mine.total <= most;
  if (lane == 0) {
    const uint32_t run = fits ? mine.total << 16 | first : kIncompleteRun;
    BarrierArriveExpectAt(barrier, 4 + (fits ? 8 * mine.total : 0));
    StoreAsync(ClusterAddress(&shared.runs[warp * blocks + team.rank], 0), __uint_as_float(run),
               barrier);
  }
  if (!fits) return;
  const uint32_t to =
      ClusterAddress(&shared.candidates[static_cast<uint32_t>(team.rank) * most + first], 0);
  mine.ForEach([&](bool is, uint32_t number, const Candidate& candidate) {
    StoreAsyncIf(is, to + 8 * number,
                 uint2{__float_as_uint(candidate.score), static_cast<uint32_t>(candidate.entry)},
                 barrier);
  });
}

// Puts the candidates of all blocks together, as Gather, in `ordered`. By the first block.
__device__ inline uint32_t Receive(int blocks, TopKShared& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  BarrierWaitCluster(&shared.lists_barrier, 0);
  __syncthreads();  // no warp reads items any more, where `ordered` is
  uint4 runs{};
  if (4 * lane < Tile::kWarps * blocks) runs = reinterpret_cast<const uint4*>(shared.runs)[lane];
  const uint32_t counts[4] = {runs.x >> 16, runs.y >> 16, runs.z >> 16, runs.w >> 16};
  uint32_t sum = 0;
  uint32_t before = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += counts[i];
    before += 4 * lane + i < warp * blocks ? counts[i] : 0;
  }
  const uint32_t total = __reduce_add_sync(~0u, sum);
  if (total > Tile::kMaxCandidates) return total;
  const int block = lane & (blocks - 1);  // some lanes for each
  const uint32_t run = shared.runs[warp * blocks + block];
  const uint32_t count = run >> 16;
  uint32_t upto = count;
  for (int offset = 1; offset < blocks; offset *= 2) {
    const uint32_t below = __shfl_up_sync(~0u, upto, offset, blocks);
    if (block >= offset) upto += below;
  }
  const Candidate* const from = shared.candidates + block * PlacesOfBlock(blocks) + (run & 0xffff);
  Candidate* const to = shared.ordered + __reduce_add_sync(~0u, before) + upto - count;
  for (uint32_t i = lane >> Log2(blocks); i < count; i += 32u >> Log2(blocks)) to[i] = from[i];
  __syncthreads();
  return total;
}

}  // namespace lodestone::cuda::top_k

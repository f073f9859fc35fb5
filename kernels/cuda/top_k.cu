// Exact top-k of rows of fp32 scores of any width: TopKArgs in kernels/cuda/launchers.h.
//
// A row is read once, by a block or a cluster of up to 8, in batches that are kept in registers.
//   1. The first batch, spread over the row, gives a bound that somewhat more than k scores reach:
//      each block counts the maxima of small groups of scores in bins. If the row is one batch, at
//      least k scores reach it.
//   2. A warp puts aside four scores next to each other if one of them reaches the bound (an item),
//      and sends the scores of its items that reach it, the candidates, to the first block.
//   3. That block finds the k-th candidate: the bin that holds it, then a rank among the few in it.
//      Score and entry are one number, larger for the lower entry, so that no two are equal.
//   4. It marks the chosen in a bitmap, counts, and writes them in ascending order.
// A row with too few or too many candidates (most scores are equal, say) is selected from by
// histograms over all of it, read again each time. No result depends on the order of atomics.
//
// Bound: latency of the launch and of about 11 barriers for few rows, bytes for many. Measured on
// an H200: 6.5 us for one row of 32,768, 0.60 of the bound for 1,024 such rows.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/top_k_filter.cuh"
#include "kernels/cuda/device/top_k_select.cuh"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

using namespace top_k;

template <typename Team>
__device__ void ClearShared(const Team& team, TopKShared& shared) {
  if (threadIdx.x < Tile::kBins) {
    shared.bins[threadIdx.x] = 0;
    shared.sample_bins[threadIdx.x] = 0;
  }
  if (threadIdx.x < Tile::kMaxCluster) shared.num_candidates[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.num_sent = 0;
    shared.num_ranked = 0;
  }
  // Only several blocks leave gaps.
  const int pairs = team.size > 1 && team.rank == 0 ? Tile::kMaxCandidates / 2 : 0;
  for (int i = threadIdx.x; i < pairs; i += Tile::kThreads) {
    reinterpret_cast<uint4*>(shared.candidates)[i] = {~0u, ~0u, ~0u, ~0u};
  }
}

// Sends the scores of this block that reach the bound to the first block.
template <int kSlots, typename Team>
__device__ void Filter(float4 (&fours)[kSlots], const RowPart<kSlots>& part, float bound,
                       const Team& team, TopKShared& shared) {
  int count = 0;
  for (int batch = 0; batch < part.num_batches; ++batch) {
    const bool more = batch + 1 < part.num_batches;
#pragma unroll
    for (int i = 0; i < kSlots; i += 4) {
      if (i < part.num_slots) {
        count = KeepItems(fours + i, part.First(batch, i), part.slot_stride, part.in_fours, bound,
                          count, shared);
      }
      if (more) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) fours[j] = part.Load(batch + 1, j);
      }
    }
  }
  if (team.rank == 0 && threadIdx.x < 32 && part.visible % 4 != 0) {
    float4 tail[4] = {NoScores(), NoScores(), NoScores(), NoScores()};
    if (threadIdx.x == 0) tail[0] = part.LoadTail();
    count = KeepItems(tail, part.visible & ~3, 0, part.visible, bound, count, shared);
  }
  __syncwarp();
  SendCandidates(count, bound, part, team, shared);
}

template <int kSlots, typename Team>
__global__ void __launch_bounds__(Tile::kThreads, kSlots > 8 ? 1 : 2)
    TopKKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared*>(smem);
  AllowNextKernel();
  const Team team;
  ClearShared(team, shared);
  team.Arrive();
  WaitForPreviousKernel();

  const int64_t row = blockIdx.x / static_cast<unsigned>(team.size);
  int32_t* const out = args.top_entries + row * args.k;
  const int visible = args.num_visible[row];
  if (visible <= args.k) {  // the same for the whole team
    if (team.rank == 0) {
      for (int i = threadIdx.x; i < args.k; i += Tile::kThreads) out[i] = i < visible ? i : -1;
    }
    team.Wait();
    return;
  }
  const RowPart<kSlots> part(args, row, visible, team);
  float4 fours[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) fours[i] = part.Load(0, i);
  const Quota quota(part, args.k);
  const Bound bound = BoundOfRow(fours, part, quota, team, shared);
  if (team.rank < part.blocks) Filter(fours, part, bound.bound, team, shared);
  team.Sync();

  TopKShared& first_block = team.Of(0, shared);
  if (team.rank != 0) {
    team.Arrive();
    team.Wait();
    if (!first_block.listed) SelectFromRow(part, args.k, team, shared);
    team.Arrive();
    team.Wait();
    return;
  }
  ClearOrder(visible, shared);
  int end = 0;
  for (int i = 0; i < part.blocks; ++i) {
    end = max(end, shared.num_candidates[i] * part.blocks);
  }
  uint64_t kth = 0;
  const CandidateList candidates(shared, min(end, Tile::kMaxCandidates));
  if (end <= Tile::kMaxCandidates) {
    kth = SelectFromList(candidates, static_cast<uint32_t>(args.k), bound, visible, shared);
  }
  if (threadIdx.x == 0) shared.listed = kth != 0;
  team.Arrive();
  if (kth != 0) {
    StoreChosen(ChosenCandidates(candidates, kth), visible, out, shared);
    team.Wait();
  } else {
    team.Wait();
    SelectFromRow(part, args.k, team, shared);
    StoreChosen(ChosenCandidates(CandidateList(shared, args.k), 0), visible, out, shared);
  }
  team.Arrive();
  team.Wait();
#endif
}

template <int kSlots, typename Team>
void LaunchTeam(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  const auto kernel = TopKKernel<kSlots, Team>;
  constexpr int kSharedBytes = static_cast<int>(sizeof(TopKShared));
  static_assert(kSharedBytes <= 99 * 1024, "more than some architectures have");
  constexpr int kMoreThanHalf = 116 * 1024;  // of the 227 KiB of an sm_90 processor
  const int shared_bytes = tile.alone && CurrentDevice().sm90 ? kMoreThanHalf : kSharedBytes;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(kernel,
                   {.blocks = args.num_rows * tile.cluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = shared_bytes,
                    .cluster = tile.cluster},
                   stream, args);
}

template <int kSlots>
void LaunchTile(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  if (tile.cluster == 1) {
    LaunchTeam<kSlots, OneBlock>(args, tile, stream);
  } else {
    LaunchTeam<kSlots, BlockCluster>(args, tile, stream);
  }
}

}  // namespace

void LaunchTopK(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  RequireArgument(args.k >= 1 && args.k <= kMaxTopK, "LaunchTopK", "k is not in 1 .. 1024", args.k);
  RequireArgument(args.score_stride % 4 == 0, "LaunchTopK", "score_stride is no multiple of 4",
                  args.score_stride);
  RequireArgument(args.max_visible <= int64_t{1} << 30, "LaunchTopK", "max_visible exceeds 2^30",
                  args.max_visible);
  RequireArgument(tile.cluster == 1 || tile.cluster == 2 || tile.cluster == 4 || tile.cluster == 8,
                  "LaunchTopK", "cluster is none of 1, 2, 4, 8", tile.cluster);
  RequireArgument(tile.per_thread == 32 || tile.per_thread == 64, "LaunchTopK",
                  "per_thread is none of 32, 64", tile.per_thread);
  if (args.num_rows == 0) return;
  if (tile.per_thread == 32) return LaunchTile<8>(args, tile, stream);
  LaunchTile<16>(args, tile, stream);
}

}  // namespace lodestone::cuda

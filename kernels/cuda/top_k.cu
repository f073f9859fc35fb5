// Exact top-k of rows of fp32 scores of any width: TopKArgs in kernels/cuda/launchers.h.
//
// A row is read once, by a block or a cluster of up to 8, in batches, into registers or, if the
// rows are many bytes, through a ring in shared memory. Each warp reads pieces of it from front to
// back, so that all lists below are in the order of entries.
//   1. The first batch gives a bound that somewhat more than k scores reach: each block counts the
//      maxima of small groups of scores in bins; the lowest bound of the blocks is the row's. If
//      the row is one batch, at least k scores reach it. Where most of the sample is as low as its
//      lowest, as where relu has left few scores above zero, the bound is just above that.
//   2. A warp puts aside four scores next to each other if one of them reaches the bound (an item).
//   3. The scores of the items that reach it, the candidates, are put together, by a cluster in its
//      first block.
//   4. That block finds the k-th candidate: the bin that holds it, then a rank among the few in it.
//      Score and entry are one number, larger for the lower entry, so that no two are equal.
//   5. It writes those that are not ranked lower. Fewer than k candidates and the first scores just
//      below the bound, if so many are equal, are the k largest.
// Where the scores that reach the bound crowd in few warps, which have no places for them, the row
// is read again, once to count them and once to put them together. Any other row with too few or
// too many candidates is read for histograms of the keys of its scores, then to write what is above
// the k-th and the first of its equals. No result depends on the order of atomics.
//
// A row of up to 32,768 is held in shared memory by a block (TopKHeldKernel), all of it on its way
// at one time. The bound comes from a sample that is loaded first, an eighth spread over the row,
// and is known before the rest has arrived. Each warp lists its own candidates; they stay where
// they are, and how many chosen ones are before a warp's comes from the counts above the k-th's bin
// and the few in it. Otherwise (SelectFromHeldRow):
//   - where one list is long, or too many are in that bin, they are put together as above;
//   - where fewer than k scores reach the bound, the next is what k of the sample reach;
//   - where the sample gives no bound, a pass over the row, in masks, sees whether the k-th is zero
//     or the sample's lowest, and writes; if it is above, that is the bound.
//
// Bound: latency of the launch, the load and of 7 to 9 barriers for few rows, bytes for many.
// Measured on an H200: 3.9 us for one row of 32,768, 5.3 for 64, 0.73 of the bound for 1,024 such
// rows, 0.81 for 128 of 262,144.

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/top_k_exchange.cuh"
#include "kernels/cuda/device/top_k_filter.cuh"
#include "kernels/cuda/device/top_k_lists.cuh"
#include "kernels/cuda/device/top_k_ring.cuh"
#include "kernels/cuda/device/top_k_select.cuh"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

using namespace top_k;

__device__ void ClearShared(TopKShared& shared) {
  if (threadIdx.x < Tile::kBins) {
    shared.bins[threadIdx.x] = 0;
    shared.sample_bins[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) {
    shared.num_sent = 0;
    shared.num_ranked = 0;
    shared.bin = {};
  }
}

// Of a row of no more than k scores.
__device__ void StoreAll(int visible, int k, int32_t* out) {
  for (int i = threadIdx.x; i < k; i += Tile::kThreads) out[i] = i < visible ? i : -1;
}

// Where the k-th is not among the candidates: whether it has written the k largest, these and
// equals of what they are above. If not, the row's pivot is set.
template <int kSlots>
__device__ bool SelectFromFew(const RowPart<kSlots>& part, const Bound& bound, const Quota& quota,
                              uint32_t count, const Candidate* candidates, int k, int32_t* out,
                              TopKShared& shared) {
  if (count < static_cast<uint32_t>(k) && !quota.all) {
    const CandidateList list(count, candidates);
    if (StoreWithEquals(reinterpret_cast<const float4*>(part.scores), part.fours,
                        Below(bound.bound), static_cast<uint32_t>(k), list, out, shared)) {
      return true;
    }
  }
  if (threadIdx.x == 0) shared.pivot = PivotOf(quota.all ? bound.low : Below(bound.bound));
  return false;
}

// Whether it has written the k largest.
template <typename Row>
__device__ bool Select(Row& row, const Quota& quota, int k, int32_t* out, const OneBlock& team,
                       TopKShared& shared) {
  const Bound bound = BoundOfRow(row, quota, team, shared);
  const uint32_t count = Gather(row.Filter(bound.bound, shared), bound.bound, shared);
  if (count <= Tile::kMaxCandidates) {
    const CandidateList list(count, shared.candidates);
    const uint64_t kth = SelectFromList(list, static_cast<uint32_t>(k), bound, shared);
    if (kth != 0) {
      StoreFromList(list, kth, out, shared);
      return true;
    }
  }
  return SelectFromFew(row.part, bound, quota, count, shared.candidates, k, out, shared);
}

// The same by a cluster, of which the first block selects from the candidates of all.
template <typename Row>
__device__ bool Select(Row& row, const Quota& quota, int k, int32_t* out, const BlockCluster& team,
                       TopKShared& shared) {
  const int blocks = row.part.blocks;
  Bound bound{};
  if (team.rank < blocks) {
    bound = BoundOfRow(row, quota, team, shared);
    const int num_items = row.Filter(bound.bound, shared);
    SendCandidates(num_items, bound.bound, blocks, team, shared);
  }
  if (team.rank != 0) return team.WaitForVerdict(shared);
  const uint32_t count = Receive(blocks, shared);
  if (count <= Tile::kMaxCandidates) {
    const CandidateList list(count, shared.ordered);
    const uint64_t kth = SelectFromList(list, static_cast<uint32_t>(k), bound, shared);
    if (kth != 0) {
      if (threadIdx.x < 32) team.ShareVerdict(true, shared);
      StoreFromList(list, kth, out, shared);
      return true;
    }
  }
  const bool found = SelectFromFew(row.part, bound, quota, count, shared.ordered, k, out, shared);
  if (threadIdx.x < 32) team.ShareVerdict(found, shared);
  return found;
}

template <typename Row, typename Team>
__global__ void __launch_bounds__(Tile::kThreads, Row::kBlocks)
    TopKKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared*>(smem + Row::kSharedBytes);
  AllowNextKernel();
  const Team team;
  const int64_t number = blockIdx.x / static_cast<unsigned>(team.size);
  const int visible = args.num_visible[number];
  Row row(args, number, visible, team, smem);
  const Quota quota(row.part, args.k);
  ClearShared(shared);
  if (threadIdx.x == 0) team.Init(row.part.blocks, shared);
  team.Arrive();
  WaitForPreviousKernel();

  int32_t* const out = args.top_entries + number * args.k;
  if (visible <= args.k) {  // the same for the whole team
    if (team.rank == 0) StoreAll(visible, args.k, out);
    team.Wait();
    return;
  }
  row.Load();
  team.Wait();
  row.TakeFirst();
  if (Select(row, quota, args.k, out, team, shared)) return;
  SelectFromRow<Row::kSlots>(args, number, visible, team, shared);
  team.Arrive();
  team.Wait();
#endif
}

__global__ void __launch_bounds__(Tile::kThreads, 1)
    TopKHeldKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared*>(smem + HeldRow::kSharedBytes);
  AllowNextKernel();
  const int64_t number = blockIdx.x;
  const int visible = args.num_visible[number];
  const uint32_t k = static_cast<uint32_t>(args.k);
  HeldRow row(args, number, visible, OneBlock{}, smem);
  const Quota quota(row.part, args.k);
  ClearShared(shared);
  if (threadIdx.x == 0) shared.bounds[0] = -kInfinity;
  __syncthreads();
  WaitForPreviousKernel();

  int32_t* const out = args.top_entries + number * args.k;
  if (visible <= args.k) return StoreAll(visible, args.k, out);
  row.Load();
  const HeldSample sample = HeldSample::Count(row.sample, shared);
  const Bound bound = sample.FindBound(quota.share, shared);
  int count = 0;
  if (bound.bound > -kInfinity) {
    count = row.Filter(bound.bound, shared);
    if (SelectFromLists(WarpList(row, count, shared), bound, k, out, shared)) return;
  }
  const HeldRow copy = row;  // a row whose address is taken is in local memory
  const HeldSample counted = sample;
  SelectFromHeldRow(copy, counted, bound, count, k, out, shared);
#endif
}

void LaunchHeld(const TopKArgs& args, cudaStream_t stream) {
  constexpr int kSharedBytes =
      HeldRow::kSharedBytes + static_cast<int>(offsetof(TopKShared, bounds_barrier));
  static_assert(kSharedBytes <= 227 * 1024);
  CUDA_CHECK(cudaFuncSetAttribute(TopKHeldKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes));
  LaunchOverlapped(TopKHeldKernel,
                   {.blocks = args.num_rows,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = 1},
                   stream, args);
}

template <typename Row, typename Team>
void LaunchTeam(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  const auto kernel = TopKKernel<Row, Team>;
  constexpr int kSharedBytes =
      Row::kSharedBytes +
      static_cast<int>(Team::kAlone ? offsetof(TopKShared, bounds_barrier) : sizeof(TopKShared));
  static_assert(!Team::kAlone || Row::kSharedBytes > 0 || kSharedBytes <= 99 * 1024,
                "more than some architectures have");
  static_assert(kSharedBytes <= 227 * 1024);
  constexpr int kMoreThanHalf = 116 * 1024;  // of the 227 KiB of an sm_90 processor
  const int shared_bytes =
      tile.alone && CurrentDevice().sm90 ? std::max(kMoreThanHalf, kSharedBytes) : kSharedBytes;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(kernel,
                   {.blocks = args.num_rows * tile.cluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = shared_bytes,
                    .cluster = tile.cluster},
                   stream, args);
}

template <typename Row>
void LaunchRows(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream) {
  if (tile.cluster == 1) {
    LaunchTeam<Row, OneBlock>(args, tile, stream);
  } else {
    LaunchTeam<Row, BlockCluster>(args, tile, stream);
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
  RequireArgument(tile.per_thread == 16 || tile.per_thread == 32 || tile.per_thread == 64,
                  "LaunchTopK", "per_thread is none of 16, 32, 64", tile.per_thread);
  RequireArgument(!tile.held || args.max_visible <= kMaxHeldTopK, "LaunchTopK",
                  "max_visible exceeds what a block holds", args.max_visible);
  if (args.num_rows == 0) return;
  if (tile.held && CurrentDevice().sm90) return LaunchHeld(args, stream);
  if (tile.ring && CurrentDevice().sm90) return LaunchRows<RingRow>(args, tile, stream);
  if (tile.per_thread == 16) return LaunchRows<RegisterRow<4>>(args, tile, stream);
  if (tile.per_thread == 32) return LaunchRows<RegisterRow<8>>(args, tile, stream);
  LaunchRows<RegisterRow<16>>(args, tile, stream);
}

}  // namespace lodestone::cuda

// Exact top-k of rows of fp32 scores of any width: TopKArgs in kernels/cuda/launchers.h. For rows
// that kernels/cuda/top_k.cu cannot keep in registers.
//
// A cluster of 8 blocks reads a row in batches. The first one gives a bound that about the k-th
// score reaches; scores that reach it go to the first block, four neighbours at a time, and it
// selects from them by a histogram and a rank among few. A row with too few or too many such scores
// is selected from by histograms over all of it, read again each time. No result depends on the
// order of atomics.
//
// Bound: launch and barriers, then bytes.

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/wide_select.cuh"
#include "kernels/cuda/launch.h"

namespace lodestone::cuda {
namespace {

using namespace wide_top_k;

__global__ void __launch_bounds__(Tile::kThreads, 2)
    WideTopKKernel(const __grid_constant__ TopKArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<TopKShared*>(smem);
  const BlockCluster team;
  ClearShared(static_cast<int>(args.max_visible), shared);
  team.Arrive();
  WaitForPreviousKernel();
  AllowNextKernel();

  const int64_t row = blockIdx.x / kCluster;
  int32_t* const out = args.top_entries + row * args.k;
  const int visible = args.num_visible[row];
  if (visible <= args.k) {
    if (team.rank == 0) {
      for (int i = threadIdx.x; i < args.k; i += Tile::kThreads) out[i] = i < visible ? i : -1;
    }
    team.Wait();
    return;
  }
  const RowPart part(args, row, visible, team);
  TopKShared& first_block = team.Of(0, shared);
  float4 a[kHalf];
  float4 b[kHalf];
  part.Load(0, 0, a);
  part.Load(0, 1, b);
  const Bounds bounds = RowBounds(part, a, b, args.k, team, shared);
  const float bound = ScoreOf(bounds.low);
  const int stride = part.First(0, 1) - part.First(0, 0);
  for (int batch = 0; batch < part.num_batches; ++batch) {
    const bool more = batch + 1 < part.num_batches;
    SendItems(a, part.First(batch, 0), stride, bound, first_block);
    if (more) part.Load(batch + 1, 0, a);
    SendItems(b, part.First(batch, kHalf), stride, bound, first_block);
    if (more) part.Load(batch + 1, 1, b);
  }
  team.Sync();
  const uint32_t k = static_cast<uint32_t>(args.k);
  if (team.rank != 0) {
    team.Arrive();
    team.Wait();
    if (!first_block.listed) SelectFromRow(part, args.k, team, shared);
    team.Arrive();
    team.Wait();
    return;
  }
  const Candidates candidates{shared, bound, shared.num_items};
  const bool listed =
      candidates.count <= Tile::kMaxItems && CountCandidates(candidates, k, bounds, shared);
  if (threadIdx.x == 0) shared.listed = listed;
  team.Arrive();
  if (listed) {
    const uint64_t kth = SelectFromItems(candidates, k, bounds, visible, shared);
    team.Wait();
    team.Arrive();
    StoreChosen(ChosenCandidates{candidates, kth}, visible, out, shared);
  } else {
    team.Wait();
    SelectFromRow(part, args.k, team, shared);
    team.Arrive();
    StoreChosen(ListedEntries{shared, args.k}, visible, out, shared);
  }
  team.Wait();
#endif
}

}  // namespace

void LaunchWideTopK(const TopKArgs& args, cudaStream_t stream) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(TopKShared));
  static_assert(kSharedBytes <= 99 * 1024, "more than some architectures have");
  CUDA_CHECK(cudaFuncSetAttribute(WideTopKKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes));
  LaunchOverlapped(WideTopKKernel,
                   {.blocks = args.num_rows * kCluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = kCluster},
                   stream, args);
}

}  // namespace lodestone::cuda

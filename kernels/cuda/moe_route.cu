// Expert choice (MoeRouteParams). A cluster has 16 tokens: its blocks share the experts, sum their
// gate products as gemm.h does, and put the scores into the shared memory of the block that chooses
// for the token, a warp each. So one launch does it without scratch. A block asks for its rows of
// the gate before it waits for the kernel before. Bound by the gate's bytes (2 MB for 256 experts
// of 4096), read by every cluster; for a few tokens by latency: the products, the cluster's
// barrier, and about 150 cycles an expert chosen.

#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster_memory.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

namespace cg = cooperative_groups;

using Tile = NarrowTile<1, 2>;
constexpr int kMaxExperts = 1024;
constexpr int kMaxChosen = 32;

struct MoeRouteArgs {
  const uint16_t* x;
  int64_t x_stride;
  const uint16_t* gate;  // [E, D]
  const float* bias;
  const int32_t* tid2eid;
  int64_t tid2eid_stride;
  const int32_t* ids;
  int32_t* experts;
  float* weights;
  int64_t experts_stride, weights_stride, num_tokens;
  int num_experts, chosen, hidden;
  float scale;
};

// kCluster: blocks of a cluster.
template <int kCluster>
struct RouteShared {
  static constexpr int kTokens = Tile::kRows / kCluster;  // chosen for by one block
  Tile tile;
  float scores[kTokens][kMaxExperts];
  float biased[kTokens][kMaxExperts];
  int32_t chosen[kTokens][kMaxChosen];
};

// sqrt(softplus(x)), of a gate product: below -17 the two first terms differ by less than 2^-24.
__device__ float ScoreOf(float x) {
  if (x > 20.0f) return sqrtf(x);
  if (x < -17.0f) return expf(0.5f * x);
  return sqrtf(log1pf(expf(x)));
}

// Orders like the value; NaN is below every number, and 0 below that.
__device__ uint32_t OrderOf(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is +0
  if (isnan(value)) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A lane's best expert that is not taken, of lane, lane + 32, ...
struct Candidate {
  uint32_t order = 0;
  int expert = kMaxExperts;
};

__device__ Candidate FindBest(const float* biased, int num_experts, uint32_t taken) {
  Candidate best;
#pragma unroll 8
  for (int i = 0; i < kMaxExperts / 32; ++i) {
    const int expert = static_cast<int>(threadIdx.x) % 32 + 32 * i;
    if (expert >= num_experts) break;
    const uint32_t order = (taken >> i & 1) == 0 ? OrderOf(biased[expert]) : 0;
    if (order > best.order) best = {order, expert};  // ties: the lower one came first
  }
  return best;
}

// The experts with the highest biased scores, ascending; ties go to the lower one. By one warp.
__device__ void ChooseHighest(const MoeRouteArgs& args, const float* biased, int32_t* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t taken = 0;  // bit i: expert lane + 32 * i
  Candidate own = FindBest(biased, args.num_experts, taken);
  for (int pick = 0; pick < args.chosen; ++pick) {
    const uint32_t highest = __reduce_max_sync(~0u, own.order);
    const int expert = __reduce_min_sync(~0u, own.order == highest ? own.expert : kMaxExperts);
    if (expert == own.expert && expert < kMaxExperts) {
      taken |= 1u << (expert / 32);
      own = FindBest(biased, args.num_experts, taken);
    }
  }
  int count = 0;
  for (int i = 0; 32 * i < args.num_experts; ++i) {
    const uint32_t lanes = __ballot_sync(~0u, (taken >> i & 1) != 0);
    if ((taken >> i & 1) != 0) {
      chosen[count + __popc(lanes & ((1u << lane) - 1))] = lane + 32 * i;
    }
    count += __popc(lanes);
  }
  __syncwarp();
}

// The token's fixed experts, ascending. By one warp.
__device__ void ChooseFixed(const MoeRouteArgs& args, int64_t token, int32_t* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t* const fixed = args.tid2eid + args.ids[token] * args.tid2eid_stride;
  const int32_t mine = lane < args.chosen ? fixed[lane] : 0;
  int rank = 0;
  for (int j = 0; j < args.chosen; ++j) {
    const int32_t other = __shfl_sync(~0u, mine, j);
    rank += other < mine || (other == mine && j < lane);
  }
  if (lane < args.chosen) chosen[rank] = mine;
  __syncwarp();
}

__device__ void StoreChoice(const MoeRouteArgs& args, int64_t token, const float* scores,
                            const int32_t* chosen) {
  double sum = 0;
  for (int i = 0; i < args.chosen; ++i) sum += static_cast<double>(scores[chosen[i]]);
  const bool usable = sum > 0 && isfinite(sum);
  const int i = static_cast<int>(threadIdx.x) % 32;
  if (i >= args.chosen) return;
  const double share = usable ? static_cast<double>(scores[chosen[i]]) / sum : 1.0 / args.chosen;
  args.experts[token * args.experts_stride + i] = chosen[i];
  args.weights[token * args.weights_stride + i] =
      static_cast<float>(share * static_cast<double>(args.scale));
}

// The experts of one block.
struct Share {
  int begin, end;
};

template <int kCluster>
__device__ Share FindShare(const MoeRouteArgs& args, int block) {
  const int share = (args.num_experts + kCluster * Tile::kColumns - 1) /
                    (kCluster * Tile::kColumns) * Tile::kColumns;
  return {block * share, min(args.num_experts, (block + 1) * share)};
}

// The scores of all experts of this block's share, to the blocks that choose.
template <int kCluster>
__device__ void ScoreShare(const MoeRouteArgs& args, int64_t first_token, const Share& share,
                           RouteShared<kCluster>& shared) {
  constexpr int kTokens = RouteShared<kCluster>::kTokens;
  const cg::cluster_group cluster = cg::this_cluster();
  for (int first = share.begin; first < share.end; first += Tile::kColumns) {
    SumSlice(
        [&](int row) -> const uint16_t* {
          const int64_t token = first_token + row;
          return token < args.num_tokens ? args.x + token * args.x_stride : nullptr;
        },
        WeightRows<WeightFormat::kBf16>{.values = reinterpret_cast<const uint8_t*>(
                                            args.gate + static_cast<int64_t>(first) * args.hidden),
                                        .scales = nullptr,
                                        .first = first,
                                        .k = args.hidden},
        share.end - first, shared.tile);
    __syncthreads();
    if (first == share.begin) ClusterWait();  // the others' shared memory exists
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * Tile::kColumns;
         i += Tile::kThreads) {
      const int row = i / Tile::kColumns;
      const int expert = first + i % Tile::kColumns;
      if (expert >= share.end) continue;
      const float score = ScoreOf(AddSlices(shared.tile, row, i % Tile::kColumns));
      const auto owner = static_cast<unsigned>(row / kTokens);
      *cluster.map_shared_rank(&shared.scores[row % kTokens][expert], owner) = score;
      if (args.bias == nullptr) continue;
      *cluster.map_shared_rank(&shared.biased[row % kTokens][expert], owner) =
          score + args.bias[expert];
    }
    __syncthreads();
  }
  if (share.begin >= share.end) ClusterWait();
}

template <int kCluster>
__global__ void __launch_bounds__(Tile::kThreads)
    MoeRouteKernel(const __grid_constant__ MoeRouteArgs args) {
  constexpr int kTokens = RouteShared<kCluster>::kTokens;
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<RouteShared<kCluster>*>(smem);
  const int block = static_cast<int>(blockIdx.x) % kCluster;
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) / kCluster * Tile::kRows;
  const Share share = FindShare<kCluster>(args, block);
  AllowNextKernel();
  for (int e = share.begin + static_cast<int>(threadIdx.x); e < share.end; e += Tile::kThreads) {
    PrefetchBulk(args.gate + static_cast<int64_t>(e) * args.hidden,
                 static_cast<uint32_t>(args.hidden) * 2);
  }
  ClusterArrive();
  WaitForPreviousKernel();
  ScoreShare<kCluster>(args, first_token, share, shared);
  ClusterArrive();
  ClusterWait();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t token = first_token + block * kTokens + warp;
  if (warp >= kTokens || token >= args.num_tokens) return;
  if (args.tid2eid != nullptr) {
    ChooseFixed(args, token, shared.chosen[warp]);
  } else {
    ChooseHighest(args, shared.biased[warp], shared.chosen[warp]);
  }
  StoreChoice(args, token, shared.scores[warp], shared.chosen[warp]);
}

template <int kCluster>
void LaunchClusters(const MoeRouteArgs& args, cudaStream_t stream) {
  const auto kernel = MoeRouteKernel<kCluster>;
  constexpr int kSharedBytes = static_cast<int>(sizeof(RouteShared<kCluster>));
  if (kCluster > 8) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  LaunchOverlapped(kernel,
                   {.blocks = (args.num_tokens + Tile::kRows - 1) / Tile::kRows * kCluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = kSharedBytes,
                    .cluster = kCluster},
                   stream, args);
}

}  // namespace

void LaunchMoeRoute(const MoeRouteParams& p, cudaStream_t stream) {
  const int64_t tokens = p.x.shape[0];
  const MoeRouteArgs args = {.x = p.x.as<uint16_t>(),
                             .x_stride = p.x.strides[0],
                             .gate = p.gate.data.as<uint16_t>(),
                             .bias = p.bias.as<float>(),
                             .tid2eid = p.tid2eid.as<int32_t>(),
                             .tid2eid_stride = p.tid2eid.strides[0],
                             .ids = p.ids.as<int32_t>(),
                             .experts = p.experts.as<int32_t>(),
                             .weights = p.weights.as<float>(),
                             .experts_stride = p.experts.strides[0],
                             .weights_stride = p.weights.strides[0],
                             .num_tokens = tokens,
                             .num_experts = static_cast<int>(p.gate.n),
                             .chosen = static_cast<int>(p.experts.shape[1]),
                             .hidden = static_cast<int>(p.x.shape[1]),
                             .scale = p.scale};
  RequireArgument(args.num_experts <= kMaxExperts, "LaunchMoeRoute", "more than 1,024 experts",
                  args.num_experts);
  RequireArgument(args.chosen <= kMaxChosen, "LaunchMoeRoute", "more than 32 experts per token",
                  args.chosen);
  RequireArgument(args.hidden % 8 == 0 && args.x_stride % 8 == 0, "LaunchMoeRoute",
                  "hidden is not a multiple of 8", args.hidden);
  if (CurrentDevice().sm90) return LaunchClusters<16>(args, stream);
  LaunchClusters<8>(args, stream);
}

}  // namespace lodestone::cuda

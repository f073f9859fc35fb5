// Expert choice (MoeRouteParams). A cluster of kCluster blocks has 16 tokens: the blocks share the
// experts, sum their gate products as gemm.h does, and put them into the shared memory of the block
// that chooses for the token: two tokens a block, one warp each. So one launch does it without
// scratch. Bound by the gate's bytes (2 MB for 256 experts of 4096), read by every cluster.

#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/gemm_tile.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

namespace cg = cooperative_groups;

using Tile = NarrowTile<1, 4>;
constexpr int kCluster = 8;
constexpr int kBlockTokens = Tile::kRows / kCluster;  // chosen for by one block
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

struct RouteShared {
  Tile tile;
  float scores[kBlockTokens][kMaxExperts];
  float biased[kBlockTokens][kMaxExperts];
  int32_t chosen[kBlockTokens][kMaxChosen];
};

// scores[e] = sqrt(softplus(product)); biased[e] = scores[e] + bias[e].
__device__ void ScoreExperts(const MoeRouteArgs& args, float* scores, float* biased) {
  for (int e = static_cast<int>(threadIdx.x) % 32; e < args.num_experts; e += 32) {
    const double x = static_cast<double>(scores[e]);
    scores[e] = static_cast<float>(sqrt(x > 20 ? x : log1p(exp(x))));
    if (args.bias != nullptr) biased[e] = scores[e] + args.bias[e];
  }
  __syncwarp();
}

// Orders like (higher value, then lower expert); NaN is below every number.
__device__ uint64_t RankOf(float value, int expert) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is +0
  const uint32_t ordered =
      isnan(value) ? 0 : ((bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u);
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(expert));
}

// The experts with the highest biased scores, ascending. By one warp.
__device__ void ChooseHighest(const MoeRouteArgs& args, const float* biased, int32_t* chosen) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t taken = 0;  // bit i: expert lane + 32 * i
  for (int pick = 0; pick < args.chosen; ++pick) {
    uint64_t best = 0;
    for (int i = 0; lane + 32 * i < args.num_experts; ++i) {
      if ((taken >> i & 1) == 0) best = max(best, RankOf(biased[lane + 32 * i], lane + 32 * i));
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      best = max(best, __shfl_xor_sync(~0u, best, offset));
    }
    const int expert = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    if (expert % 32 == lane) taken |= 1u << (expert / 32);
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

// Gate products of all experts of this block's share, to the blocks that choose.
__device__ void MultiplyGate(const MoeRouteArgs& args, int64_t first_token, RouteShared& shared) {
  const cg::cluster_group cluster = cg::this_cluster();
  const int share = (args.num_experts + kCluster * Tile::kColumns - 1) /
                    (kCluster * Tile::kColumns) * Tile::kColumns;
  const int begin = static_cast<int>(cluster.block_rank()) * share;
  const int end = min(args.num_experts, begin + share);
  for (int first = begin; first < end; first += Tile::kColumns) {
    SumSlice<false>(
        [&](int row) -> const uint16_t* {
          const int64_t token = first_token + row;
          return token < args.num_tokens ? args.x + token * args.x_stride : nullptr;
        },
        WeightRows<WeightFormat::kBf16>{
            .values = reinterpret_cast<const uint8_t*>(args.gate +
                                                       static_cast<int64_t>(first) * args.hidden),
            .scales = nullptr,
            .first = first,
            .k = args.hidden},
        end - first, nullptr, shared.tile);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * Tile::kColumns;
         i += Tile::kThreads) {
      const int row = i / Tile::kColumns;
      const int expert = first + i % Tile::kColumns;
      if (expert >= end) continue;
      float* const scores = cluster.map_shared_rank(&shared.scores[row % kBlockTokens][0],
                                                    static_cast<unsigned>(row / kBlockTokens));
      scores[expert] = AddSlices(shared.tile, row, i % Tile::kColumns);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(Tile::kThreads)
    MoeRouteKernel(const __grid_constant__ MoeRouteArgs args) {
  extern __shared__ __align__(16) uint8_t smem[];
  auto& shared = *reinterpret_cast<RouteShared*>(smem);
  cg::cluster_group cluster = cg::this_cluster();
  AllowNextKernel();
  WaitForPreviousKernel();
  cluster.sync();  // the others' shared memory exists
  const int64_t first_token = static_cast<int64_t>(blockIdx.x) / kCluster * Tile::kRows;
  MultiplyGate(args, first_token, shared);
  cluster.sync();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t token = first_token + cluster.block_rank() * kBlockTokens + warp;
  if (warp >= kBlockTokens || token >= args.num_tokens) return;
  ScoreExperts(args, shared.scores[warp], shared.biased[warp]);
  if (args.tid2eid != nullptr) {
    ChooseFixed(args, token, shared.chosen[warp]);
  } else {
    ChooseHighest(args, shared.biased[warp], shared.chosen[warp]);
  }
  StoreChoice(args, token, shared.scores[warp], shared.chosen[warp]);
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
  CUDA_CHECK(cudaFuncSetAttribute(MoeRouteKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(RouteShared))));
  LaunchOverlapped(MoeRouteKernel,
                   {.blocks = (tokens + Tile::kRows - 1) / Tile::kRows * kCluster,
                    .threads = Tile::kThreads,
                    .shared_bytes = static_cast<int>(sizeof(RouteShared)),
                    .cluster = kCluster},
                   stream, args);
}

}  // namespace lodestone::cuda

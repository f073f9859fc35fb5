// Which path sparse attention (SparseAttentionParams in kernels/op_params.h) takes:
//   sparse_attention_blocks.cu: bf16 latents of 512 dims on sm_90a; with several splits
//     sparse_attention_join.cu joins them.
//   sparse_attention_prefill.cu: the same, the same bits, for many tokens with one split.
//   sparse_attention_token.cu, sparse_attention_cluster.cu, sparse_attention_relay.cu: for one
//     token, few and some tens.
//   sparse_attention_portable.cu: everything else.

#include "kernels/cuda/sparse_attention.h"

#include <mutex>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/tensor_map.h"

namespace lodestone::cuda {
namespace {

// Of the current device; looked up once.
const MaxClusters& CurrentMaxClusters() {
  constexpr int kMaxDevices = 64;
  static MaxClusters of_device[kMaxDevices];
  static std::once_flag once[kMaxDevices];
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  std::call_once(once[device], [device] {
    of_device[device] = {.of16 = CountClusters16(),
                         .of8 = CountClusters8(),
                         .of4 = CountRelays(4),
                         .of2 = CountRelays(2)};
  });
  return of_device[device];
}

}  // namespace

CUtensorMap MakeHeadMap(const SparseAttentionArgs& args, const void* data, int box_heads) {
  const uint64_t row_bytes = kAttentionDims * 2;
  const auto num_heads = static_cast<uint64_t>(args.num_heads);
  return MakeTensorMap({.data = data,
                        .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        .rank = 3,
                        .size = {kAttentionDims, num_heads, static_cast<uint64_t>(args.num_tokens)},
                        .stride = {row_bytes, row_bytes * num_heads},
                        .box = {64, static_cast<uint32_t>(box_heads), 1},
                        .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap MakeQueryMap(const SparseAttentionArgs& args, int box_heads) {
  constexpr int kSlices = kAttentionDims / 64;
  const uint64_t row_bytes = kAttentionDims * 2;
  const auto num_heads = static_cast<uint64_t>(args.num_heads);
  return MakeTensorMap({.data = args.q,
                        .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        .rank = 4,
                        .size = {64, num_heads, kSlices, static_cast<uint64_t>(args.num_tokens)},
                        .stride = {row_bytes, 128, row_bytes * num_heads},
                        .box = {64, static_cast<uint32_t>(box_heads), kSlices, 1},
                        .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

SparseAttentionTile ChooseSparseAttentionTile(const SparseAttentionArgs& args) {
  const bool fits = CurrentDevice().sm90 && args.format == KvFormat::kBf16 &&
                    args.head_dim == kAttentionDims && args.rope_dims == kAttentionRopeDims;
  if (!fits) return {};
  const ClusterShape cluster =
      ChooseAttentionCluster(args.num_tokens, args.num_heads, args.max_keys, CurrentMaxClusters());
  if (cluster.heads > 0) return {.path = AttentionPath::kCluster, .split = {}, .cluster = cluster};
  const AttentionSplits split = ChooseAttentionSplits(args.max_keys);
  if (split.splits == 1 && args.num_tokens > kMaxDecodeTokens) {
    return {.path = AttentionPath::kPrefill, .split = {}, .cluster = {}};
  }
  return {.path = AttentionPath::kTensorCore, .split = split, .cluster = {}};
}

void LaunchSparseAttention(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                           cudaStream_t stream) {
  if (args.num_tokens == 0) return;
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kRootDims = 22.627416997969522;  // 512^1/2
  constexpr auto kScale = static_cast<float>(kLog2E / kRootDims);
  if (tile.path == AttentionPath::kPortable) {
    LaunchSparseAttentionPortable(args, stream);
    return;
  }
  RequireArgument(args.k <= kMaxTopK, "LaunchSparseAttention", "k exceeds 1024", args.k);
  if (tile.path == AttentionPath::kCluster) {
    if (tile.cluster.blocks <= 4) {
      LaunchSparseAttentionRelay(args, tile.cluster.blocks, kScale, stream);
    } else if (tile.cluster.blocks == 16 && tile.cluster.heads == 16) {
      LaunchSparseAttentionToken(args, kScale, stream);
    } else {
      LaunchSparseAttentionCluster(args, tile.cluster, kScale, stream);
    }
    return;
  }
  if (tile.path == AttentionPath::kPrefill) {
    LaunchSparseAttentionPrefill(args, kScale, stream);
    return;
  }
  LaunchSparseAttentionBlocks(args, tile.split, kScale, stream);
  if (tile.split.splits > 1) LaunchJoinSplits(args, tile.split.splits, stream);
}

}  // namespace lodestone::cuda

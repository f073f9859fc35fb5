// Index scores on the tensor cores (sm_90a): IndexTopKParams in kernels/op_params.h.
//
// A persistent grid: the 64-entry tiles of all tokens, in order, are cut into one equal range per
// thread block, so that one long request spreads over the card. Key warps feed a ring of key tiles
// with the copy engine, in turn; math warpgroups (device/index_math.cuh) take turns, too. Keys are
// the M operand (64 entries), the heads of one or two tokens the N operand (64 or 128).
//
// Every format runs the same products in the same order (m64n64k16 or m64n128k16, k ascending by
// 16) on bf16 operands: bf16 keys straight from shared memory, fp8 and fp4 keys widened into
// registers (device/widen_keys.cuh). So fp4 keys that hold what bf16 keys would give the same bits.
//
// In decode the ring fills while the kernels ahead in the stream still run: their last blocks leave
// the memory idle, and only a token's last entry can be theirs.
//
// Bound: bytes in decode (256, 132 or 68 per entry and token), products in prefill (16,384 FLOP per
// entry and token at 64 heads). Measured on H200s at 32 x 32,768 entries: 0.88 to 0.92 of it with
// bf16 keys; 0.72 fp8 and 0.49 fp4, both bound by the instructions that widen. 0.74 to 0.77 in bf16
// prefill.

#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_math.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensor_map.h"

namespace lodestone::cuda {
namespace {

struct IndexScoresMaps {
  CUtensorMap keys;   // [P, 64, payload bytes], 128 bytes (kFp4: 64) x 64 rows a box
  CUtensorMap query;  // bf16 [T * H_i, 128], 64 x kColumns a box
};

// Queries and weights of the group into buffer `index` % 2.
template <typename Tile>
__device__ void LoadQuery(const IndexScoresArgs& args, const IndexScoresMaps& maps, int token,
                          int tokens, int index, IndexScoresShared<Tile>& shared) {
  const int buffer = index % 2;
  uint64_t* const full = &shared.query_full[buffer];
  const uint32_t weight_bytes = static_cast<uint32_t>(tokens * args.num_heads * 4);
  BarrierWait(&shared.query_empty[buffer], (index / 2 + 1) % 2);
  BarrierArriveExpect(full, 2 * Tile::kQueryHalfBytes + weight_bytes);
  for (int half = 0; half < 2; ++half) {
    CopyBox2(shared.query[buffer] + half * Tile::kQueryHalfBytes, &maps.query, full, half * 64,
             static_cast<int>(token * args.num_heads));
  }
  CopyBulk(shared.weight[buffer], args.weight + token * args.num_heads, weight_bytes, full);
}

// The query thread: queries of all token groups of this block. They may come from the kernel
// before.
template <typename Tile>
__device__ void LoadQueries(const IndexScoresArgs& args, const IndexScoresMaps& maps,
                            IndexScoresShared<Tile>& shared) {
  int index = 0;
  ForEachGroup<Tile::kTokens>(args, shared.share,
                              [&](int token, const TokenGroup& group, int, int, uint32_t) {
                                LoadQuery(args, maps, token, group.tokens, index, shared);
                                ++index;
                              });
}

// Key tile `number` of this block, which is page `page`.
template <typename Tile>
__device__ void LoadKeys(const IndexScoresArgs& args, const IndexScoresMaps& maps, int page,
                         uint32_t number, IndexScoresShared<Tile>& shared) {
  const uint32_t stage = number % Tile::kStages;
  const uint32_t parity = (number / Tile::kStages + 1) % 2;
  uint64_t* const full = &shared.key_full[stage];
  BarrierWait(&shared.key_empty[stage], parity);
  BarrierArriveExpect(full, Tile::kPayloadBytes + Tile::kScaleBytes);
  // Decode reads a key once; tokens of a prefill chunk read it again.
  const auto copy = Tile::kTokens == 1 ? CopyBox3Once : CopyBox3;
  copy(shared.keys[stage], &maps.keys, full, 0, 0, page);
  if constexpr (Tile::kFormat == IndexKeyFormat::kBf16) {
    copy(shared.keys[stage] + Tile::kPayloadBytes / 2, &maps.keys, full, 128, 0, page);
  } else {
    CopyBulk(shared.scale[stage], args.keys.scale + page * args.keys.scale_block_stride,
             Tile::kScaleBytes, full);
  }
}

// One key warp: its turns among the tiles of this block.
template <typename Tile>
__device__ void LoadTiles(const IndexScoresArgs& args, const IndexScoresMaps& maps, int warp,
                          IndexScoresShared<Tile>& shared) {
  constexpr int kWarps = Tile::kKeyWarps;
  const int lane = threadIdx.x % 32;
  if (!args.old_keys) WaitForPreviousKernel();
  const auto load = [&](int token, const TokenGroup& group, int tile, int count, uint32_t number) {
    const int seq = number == 0 ? shared.share.first_seq : args.token_seq[token];
    const int32_t* pages = args.block_table + seq * args.max_pages + tile;
    // Lane i looks up the page of this warp's i-th tile from `first` on.
    for (int first = TurnOf<kWarps>(warp, number); first < count; first += 32 * kWarps) {
      const int at = first + lane * kWarps;
      const int my_page = at < count ? pages[at] : 0;
      for (int i = 0; i < 32 && first + i * kWarps < count; ++i) {
        const int page = __shfl_sync(~0u, my_page, i);
        if (tile + first + i * kWarps == group.tiles - 1) WaitForPreviousKernel();
        if (lane == 0) LoadKeys(args, maps, page, number + first + i * kWarps, shared);
      }
    }
  };
  ForEachGroup<Tile::kTokens>(args, shared.share, load);
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    IndexScoresKernel(const __grid_constant__ IndexScoresArgs args,
                      const __grid_constant__ IndexScoresMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<IndexScoresShared<Tile>*>(smem);
  AllowNextKernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      BarrierInit(&shared.key_full[i], 1);
      BarrierInit(&shared.key_empty[i], 4);  // the warps of one warpgroup
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(&shared.query_full[i], 1);
      BarrierInit(&shared.query_empty[i], Tile::kMathThreads / 32);
    }
    BarrierInitFence();
    shared.e2m1_table_low = kE2m1Low;
  }
  FindShare<Tile::kTokens, Tile::kThreads>(args, shared.warp_tiles, shared.share);
  __syncthreads();
  if (threadIdx.x < Tile::kMathThreads) {
    if constexpr (Tile::kMovesRegisters) GrowRegisters<Tile::kMathRegisters>();
    WaitForPreviousKernel();  // which may still read the scores
    ScoreTiles(args, shared);
    return;
  }
  if constexpr (Tile::kMovesRegisters) ShrinkRegisters<Tile::kLoadRegisters>();
  const int warp = (threadIdx.x - Tile::kMathThreads) / 32;
  if (warp < Tile::kKeyWarps) {
    LoadTiles(args, maps, warp, shared);
  } else if (warp == Tile::kKeyWarps && threadIdx.x % 32 == 0) {
    WaitForPreviousKernel();  // which may write queries and weights
    LoadQueries(args, maps, shared);
  }
#endif
}

IndexScoresMaps MakeMaps(const IndexScoresArgs& args, int columns) {
  const int64_t row_bytes = IndexKeyRowBytes(args.format, IndexDims::kDims).payload;
  const uint32_t box_bytes = row_bytes >= 128 ? 128 : 64;
  return {.keys = MakeTensorMap({.data = args.keys.payload,
                                 .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                 .rank = 3,
                                 .size = {static_cast<uint64_t>(row_bytes), kTileEntries,
                                          static_cast<uint64_t>(args.keys.num_blocks)},
                                 .stride = {static_cast<uint64_t>(row_bytes),
                                            static_cast<uint64_t>(args.keys.payload_block_stride)},
                                 .box = {box_bytes, kTileEntries, 1},
                                 .swizzle = box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                             : CU_TENSOR_MAP_SWIZZLE_64B}),
          .query = MakeTensorMap(
              {.data = args.q,
               .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               .rank = 2,
               .size = {IndexDims::kDims, static_cast<uint64_t>(args.num_tokens * args.num_heads)},
               .stride = {IndexDims::kDims * 2},
               .box = {64, static_cast<uint32_t>(columns)},
               .swizzle = CU_TENSOR_MAP_SWIZZLE_128B})};
}

template <IndexKeyFormat kFormat, int kTokens>
void LaunchTile(const IndexScoresArgs& args, cudaStream_t stream) {
  using Tile = IndexScoresTile<kFormat, kTokens>;
  constexpr int kSharedBytes = static_cast<int>(sizeof(IndexScoresShared<Tile>));
  const auto kernel = IndexScoresKernel<Tile>;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const LaunchShape shape = {.blocks = CurrentDevice().processors,
                             .threads = Tile::kThreads,
                             .shared_bytes = kSharedBytes};
  LaunchOverlapped(kernel, shape, stream, args, MakeMaps(args, Tile::kColumns));
}

template <IndexKeyFormat kFormat>
void LaunchFormat(const IndexScoresArgs& args, cudaStream_t stream) {
  if (args.num_heads == IndexDims::kHeads && args.num_tokens > args.num_seqs) {
    LaunchTile<kFormat, 2>(args, stream);
  } else {
    LaunchTile<kFormat, 1>(args, stream);
  }
}

}  // namespace

// kernels/cuda/index_scores_portable.cu
void LaunchIndexScoresPortable(const IndexScoresArgs& args, cudaStream_t stream);

IndexScoresPath ChooseIndexScoresPath(const IndexScoresArgs& args) {
  const bool fits = CurrentDevice().sm90 && args.head_dim == IndexDims::kDims &&
                    args.num_heads <= IndexDims::kHeads && args.num_heads % 4 == 0 &&
                    args.keys.payload_block_stride % 16 == 0 &&
                    args.keys.scale_block_stride % 16 == 0;
  return fits ? IndexScoresPath::kTensorCore : IndexScoresPath::kPortable;
}

void LaunchIndexScores(const IndexScoresArgs& args, IndexScoresPath path, cudaStream_t stream) {
  RequireArgument(args.score_stride >= args.max_visible, "LaunchIndexScores",
                  "score_stride is less than max_visible", args.score_stride);
  if (args.num_tokens == 0 || args.max_visible == 0) return;
  if (path == IndexScoresPath::kPortable) {
    LaunchIndexScoresPortable(args, stream);
    return;
  }
  switch (args.format) {
    case IndexKeyFormat::kBf16:
      return LaunchFormat<IndexKeyFormat::kBf16>(args, stream);
    case IndexKeyFormat::kFp8:
      return LaunchFormat<IndexKeyFormat::kFp8>(args, stream);
    case IndexKeyFormat::kFp4:
      return LaunchFormat<IndexKeyFormat::kFp4>(args, stream);
    case IndexKeyFormat::kF32:
      RequireArgument(false, "LaunchIndexScores", "fp32 keys are for the CPU only", 0);
  }
}

}  // namespace lodestone::cuda

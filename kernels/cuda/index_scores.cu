// Index scores on the tensor cores (sm_90a): IndexTopKParams in kernels/op_params.h.
//
// A persistent grid: the 64-entry tiles of all tokens, in order, are cut into one equal range per
// thread block, so that one long request spreads over the card. Key warps feed a ring of key tiles
// with the copy engine, in turn; math warpgroups (device/index_math.cuh) take turns, too. Keys are
// the M operand (64 entries), the heads of one or two tokens the N operand (64 or 128).
//
// Every format runs the same products in the same order (m64n64k16 or m64n128k16, k ascending by
// 16) on bf16 operands: bf16 keys straight from shared memory, fp8 and fp4 keys widened into
// registers (device/widen_keys.cuh). fp4 keys and queries that hold small integers times a power of
// two are multiplied as such (m64n64k32, twice the rate; device/index_integers.cuh): exactly, like
// the bf16 products of the same values. So fp4 keys that hold what bf16 keys would give the same
// bits, but where sums of bf16 keys leave the range of fp32.
//
// fp4 queries of decode are read and made integers by the math threads, and the start of a token
// counts as a few tiles where work is divided: both are work that a launch waits for.
//
// In decode the ring fills while the kernels ahead in the stream still run: their last blocks leave
// the memory idle, and only a token's last entry can be theirs. Some processors read faster than
// others (53 to 70 us for an equal share of 65 us), so in large decode launches with bf16 keys
// blocks draw tickets for most of the tiles (device/index_ticket.cuh).
//
// Bound: bytes in decode (256, 132 or 68 per entry and token), products in prefill (16,384 FLOP per
// entry and token at 64 heads). Measured on an H200 at 32 x 32,768 entries: 0.91 of it with bf16
// keys; 0.73 fp8, bound by the instructions that widen and sum; 0.60 fp4, where those of the key
// warps count, too: with 75 a tile, not 64, all others wait for them. 0.73 to
// 0.78 in bf16 prefill, by the card.

#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_load.cuh"
#include "kernels/cuda/device/index_math.cuh"
#include "kernels/cuda/device/index_ticket.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/ticket_word.h"

namespace lodestone::cuda {
namespace {

// Count the tickets drawn, one word a stream.
__device__ uint32_t ticket_words[kTicketWords];

// By one thread, which is faster than one a barrier; the caller synchronises.
template <typename Tile>
__device__ void InitKeyBarriers(IndexScoresShared<Tile>& shared) {
  for (int i = 0; i < Tile::kStages; ++i) {
    BarrierInit(&shared.key_full[i], Tile::kHasIntegers ? 1 + 32 : 1);
    BarrierInit(&shared.key_empty[i], 4);  // the warps of one warpgroup
  }
  BarrierInitFence();
}

// The same by another.
template <typename Tile>
__device__ void InitOtherBarriers(IndexScoresShared<Tile>& shared) {
  if constexpr (Tile::kHasIntegers) {
    for (uint64_t& full : shared.integers.scale_full) BarrierInit(&full, 1);
  }
  for (int i = 0; !Tile::kFetchesQueries && i < 2; ++i) {
    BarrierInit(&shared.query_full[i], 1);
    BarrierInit(&shared.query_empty[i], Tile::kMathThreads / 32);
  }
  for (int i = 0; Tile::kDeals && i < Tile::kItems; ++i) {
    BarrierInit(&shared.item_full[i], 32 + 1);  // copies of pages, and what they are
    BarrierInit(&shared.item_empty[i], Tile::kItemReaders);
  }
  BarrierInitFence();
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    IndexScoresKernel(const __grid_constant__ IndexScoresArgs args,
                      const __grid_constant__ IndexScoresMaps maps, int ticket_word) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<IndexScoresShared<Tile>*>(smem);
  AllowNextKernel();
  const WarpTokens<Tile::kTokens> tokens(args);  // its loads take longer than what follows
  if (threadIdx.x == Tile::kThreads - 32) {
    InitKeyBarriers(shared);
  } else if (threadIdx.x == Tile::kThreads - 64) {
    InitOtherBarriers(shared);
    shared.e2m1_table_low = kE2m1Low;
    shared.minus_one = ~0u;
    if constexpr (Tile::kHasIntegers) StoreTables(shared);
  } else if (threadIdx.x == 32) {
    PrefetchMap(&maps.keys);
    PrefetchMap(&maps.query);
  }
  const bool deals = Tile::kDeals && ticket_word >= 0;
  const bool few = args.num_tokens <= 32;
  IndexShare share{};
  if (few) share = tokens.template Share<Tile::kThreads, Tile::kStartTiles>(args, deals);
  __syncthreads();
  if (!few) {
    FindShare<Tile::kTokens, Tile::kThreads>(args, deals, shared.warp_tiles, shared.table,
                                             shared.share);
    __syncthreads();
    share = shared.share;
  }
  if (threadIdx.x < Tile::kMathThreads) {
    if constexpr (Tile::kMovesRegisters) GrowRegisters<Tile::kMathRegisters>();
    ScoreTiles(args, share, shared);
    return;
  }
  if constexpr (Tile::kMovesRegisters) ShrinkRegisters<Tile::kLoadRegisters>();
  const int warp = (threadIdx.x - Tile::kMathThreads) / 32;
  if (warp < Tile::kKeyWarps) {
    LoadTiles(args, maps, warp, share, shared);
  } else if constexpr (Tile::kHasIntegers) {
    FindIntegers(args, maps, warp - Tile::kKeyWarps, share, shared);
  } else if (warp == Tile::kKeyWarps) {
    if (threadIdx.x % 32 == 0) LoadQueries(args, maps, share, shared);
  } else if constexpr (Tile::kDeals) {
    if (share.dealt == share.total) return;
    if (few) tokens.Fill(shared.table);
    __syncwarp();
    WaitForPreviousKernel();  // which may still draw tickets
    DealTiles(args, share, &ticket_words[ticket_word], shared);
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
  static_assert(kSharedBytes <= 227 * 1024);
  const auto kernel = IndexScoresKernel<Tile>;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const LaunchShape shape = {.blocks = CurrentDevice().processors,
                             .threads = Tile::kThreads,
                             .shared_bytes = kSharedBytes};
  LaunchOverlapped(kernel, shape, stream, args, MakeMaps(args, Tile::kColumns), TicketWord(stream));
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

// Index scores on the tensor cores (sm_90a): IndexTopKParams in kernels/op_params.h.
//
// A persistent grid: the 64-entry tiles of all tokens, in order, are cut into one equal range per
// thread block, so that one long request spreads over the card. Four warps feed a ring of key tiles
// with the copy engine, in turn; math warpgroups take turns, too: tile i goes to warpgroup i mod
// kMathGroups. Keys are the M operand (64 entries), the heads of one or two tokens the N operand
// (64 or 128).
//
// Every format runs the same products in the same order (m64n64k16 or m64n128k16, k ascending) on
// bf16 operands: bf16 keys straight from shared memory, fp8 and fp4 keys widened into registers. So
// fp4 keys that hold what bf16 keys would give the same bits.
//
// Bound: bytes in decode (256, 132 or 68 per entry and token), products in prefill (16,384 FLOP per
// entry and token at 64 heads). Measured on an H200: 0.86 of it at 32 x 32,768 entries with bf16
// keys, 0.54 fp8, 0.40 fp4 (both bound by the instructions that widen); 0.71 in bf16 prefill.

#include <cuda.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensor_map.h"

namespace lodestone::cuda {
namespace {

constexpr int kEntries = 64;  // of a page at ratio 4
constexpr int kDims = 128;
constexpr int kHeads = 64;

template <IndexKeyFormat kTileFormat, int kTileTokens>
struct IndexScoresTile {
  static constexpr IndexKeyFormat kFormat = kTileFormat;
  static constexpr int kTokens = kTileTokens;  // that share a key tile
  static constexpr int kColumns = kTokens * kHeads;
  // Decode with bf16 keys is bound by bytes and two warpgroups keep up. Widening is bound by issue
  // slots and hides its latency behind other warpgroups.
  static constexpr bool kWidens = kFormat != IndexKeyFormat::kBf16;
  static constexpr int kMathGroups = kTokens == 1 ? (kWidens ? 4 : 2) : 3;
  static constexpr int kMathThreads = 128 * kMathGroups;
  static constexpr int kLoadWarps = kMathGroups == 3 ? 3 : 4;
  static constexpr int kThreads = kMathThreads + 32 * kLoadWarps;
  static constexpr int kPayloadBytes =
      kEntries * static_cast<int>(IndexKeyRowBytes(kFormat, kDims).payload);
  [[maybe_unused]] static constexpr int kScaleBytes =
      kEntries * static_cast<int>(IndexKeyRowBytes(kFormat, kDims).scale);
  // The ring takes more than half of the shared memory (kBf16) or the threads more than half of the
  // registers: blocks of the next launch must not share a processor with one of this, since each
  // block has an equal share of the tiles.
  static constexpr int kStages =
      (kFormat == IndexKeyFormat::kFp4 ? 2 : 1) * (kMathGroups == 3 ? 9 : 8);
  static constexpr int kQueryHalfBytes = kColumns * 128;  // 64 dims of every column
  static_assert(kPayloadBytes % 1024 == 0, "tiles keep the alignment that swizzled rows need");
  static_assert(kStages % kLoadWarps == 0, "a stage has one loading warp");
  // A warpgroup that did not wait for a stage's last tile could take that one's phase for its own.
  static_assert(kStages % kMathGroups == 0, "a stage has one math warpgroup");
};

template <typename Tile>
struct alignas(1024) IndexScoresShared {
  uint8_t keys[Tile::kStages][Tile::kPayloadBytes];
  uint8_t query[2][2 * Tile::kQueryHalfBytes];
  alignas(16) float weight[2][Tile::kColumns];
  alignas(16) uint8_t scale[Tile::kStages][kEntries * 4];
  uint64_t key_full[Tile::kStages];
  uint64_t key_empty[Tile::kStages];
  uint64_t query_full[2];
  uint64_t query_empty[2];
  int64_t warp_tiles[Tile::kThreads / 32];
  int first_token;
  int first_tile;
  int64_t num_tiles;
};

struct IndexScoresMaps {
  CUtensorMap keys;   // [P, 64, payload bytes], 128 bytes (kFp4: 64) x 64 rows a box
  CUtensorMap query;  // bf16 [T * H_i, 128], 64 x kColumns a box
};

// Adjacent tokens of one sequence that share key tiles. A group starts at an even token or where
// the sequence changes.
struct TokenGroup {
  int tokens;
  int tiles;
};

template <typename Tile>
__device__ TokenGroup GroupAt(const IndexScoresArgs& args, int64_t token) {
  TokenGroup group{1, (args.num_visible[token] + kEntries - 1) / kEntries};
  if constexpr (Tile::kTokens == 2) {
    if (token % 2 == 0 && token + 1 < args.num_tokens &&
        args.token_seq[token] == args.token_seq[token + 1]) {
      const int next_tiles = (args.num_visible[token + 1] + kEntries - 1) / kEntries;
      group = {2, max(group.tiles, next_tiles)};
    }
  }
  return group;
}

// Tiles of the group that starts at `token`; 0 if none starts there.
template <typename Tile>
__device__ int TilesStartingAt(const IndexScoresArgs& args, int64_t token) {
  if constexpr (Tile::kTokens == 2) {
    if (token % 2 == 1 && args.token_seq[token] == args.token_seq[token - 1]) return 0;
  }
  return GroupAt<Tile>(args, token).tiles;
}

// Writes this block's share of all tiles: its first token and tile, and how many tiles.
template <typename Tile>
__device__ void FindShare(const IndexScoresArgs& args, IndexScoresShared<Tile>& shared) {
  const int64_t per_thread = (args.num_tokens + Tile::kThreads - 1) / Tile::kThreads;
  const int64_t begin = min(threadIdx.x * per_thread, args.num_tokens);
  const int64_t end = min(begin + per_thread, args.num_tokens);
  int64_t tiles = 0;
  for (int64_t token = begin; token < end; ++token) tiles += TilesStartingAt<Tile>(args, token);
  int64_t inclusive = tiles;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t before = __shfl_up_sync(~0u, inclusive, offset);
    if (threadIdx.x % 32 >= offset) inclusive += before;
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 31) shared.warp_tiles[warp] = inclusive;
  __syncthreads();
  int64_t total = 0;
  int64_t at = inclusive - tiles;  // tiles before this thread's tokens
  for (int i = 0; i < Tile::kThreads / 32; ++i) {
    if (i == warp) at += total;
    total += shared.warp_tiles[i];
  }
  const int64_t first = blockIdx.x * total / gridDim.x;
  const int64_t last = (blockIdx.x + 1) * total / gridDim.x;
  if (threadIdx.x == 0) shared.num_tiles = last - first;
  if (at <= first && first < at + tiles) {
    for (int64_t token = begin;; ++token) {
      const int here = TilesStartingAt<Tile>(args, token);
      if (first < at + here) {
        shared.first_token = static_cast<int>(token);
        shared.first_tile = static_cast<int>(first - at);
        break;
      }
      at += here;
    }
  }
}

// Queries and weights of the group into buffer `index` % 2.
template <typename Tile>
__device__ void LoadQuery(const IndexScoresArgs& args, const IndexScoresMaps& maps, int token,
                          int tokens, int index, IndexScoresShared<Tile>& shared) {
  const int buffer = index % 2;
  const uint32_t weight_bytes = static_cast<uint32_t>(tokens * args.num_heads * 4);
  BarrierWait(&shared.query_empty[buffer], (index / 2 + 1) % 2);
  BarrierArriveExpect(&shared.query_full[buffer], 2 * Tile::kQueryHalfBytes + weight_bytes);
  for (int half = 0; half < 2; ++half) {
    CopyBox2(shared.query[buffer] + half * Tile::kQueryHalfBytes, &maps.query,
             &shared.query_full[buffer], half * 64, static_cast<int>(token * args.num_heads));
  }
  CopyBulk(shared.weight[buffer], args.weight + token * args.num_heads, weight_bytes,
           &shared.query_full[buffer]);
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

// One loading warp: its turns among the tiles of this block, and, if it is the first, the queries.
template <typename Tile>
__device__ void LoadTiles(const IndexScoresArgs& args, const IndexScoresMaps& maps,
                          IndexScoresShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  const int warp = (threadIdx.x - Tile::kMathThreads) / 32;
  int token = shared.first_token;
  int tile = shared.first_tile;
  int query = 0;
  uint32_t number = 0;  // of the first tile of this token group
  for (int64_t left = shared.num_tiles; left > 0;) {
    const TokenGroup group = GroupAt<Tile>(args, token);
    const int count = static_cast<int>(min(static_cast<int64_t>(group.tiles - tile), left));
    const int32_t* pages = args.block_table + args.token_seq[token] * args.max_pages + tile;
    // Lane i looks up the page of this warp's i-th tile from `first` on.
    const int mine = (warp + Tile::kLoadWarps - number % Tile::kLoadWarps) % Tile::kLoadWarps;
    for (int first = mine; first < count; first += 32 * Tile::kLoadWarps) {
      const int at = first + lane * Tile::kLoadWarps;
      const int my_page = at < count ? pages[at] : 0;
      if (first == mine && warp == 0 && lane == 0) {
        LoadQuery(args, maps, token, group.tokens, query, shared);
      }
      for (int i = 0; i < 32 && first + i * Tile::kLoadWarps < count; ++i) {
        const int page = __shfl_sync(~0u, my_page, i);
        if (lane == 0) LoadKeys(args, maps, page, number + first + i * Tile::kLoadWarps, shared);
      }
    }
    // A group of fewer tiles than warps may have none for the first.
    if (mine >= count && count > 0 && warp == 0 && lane == 0) {
      LoadQuery(args, maps, token, group.tokens, query, shared);
    }
    query += count > 0;
    number += count;
    left -= count;
    tile = 0;
    token += group.tokens;
  }
}

// Bytes of `low` and `high` that `selector` names, zero-extended.
__device__ uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}

// A operands of all k-steps from packed keys: codes widened to bf16. `row` is this thread's first
// row of the tile. Rows 8 apart are swizzled alike, so that most addresses differ by constants.
// Four threads read the same 16 bytes and pick theirs.
__device__ void WidenFp8(const uint8_t* keys, int row, uint32_t (&a)[kDims / 16][4]) {
  const uint32_t pair = threadIdx.x % 4;
  const uint32_t two_bytes = 0x10u + pair * 0x22u;  // of 8; the upper half of the result is unused
#pragma unroll
  for (int step = 0; step < kDims / 16; ++step) {
    const uint8_t* unit = keys + row * 128 + (step ^ (row % 8)) * 16;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 codes = *reinterpret_cast<const uint4*>(unit + j * 8 * 128);
      a[step][j] = WidenE4m3Pair(PickBytes(codes.x, codes.y, two_bytes));
      a[step][2 + j] = WidenE4m3Pair(PickBytes(codes.z, codes.w, two_bytes));
    }
  }
}

// The same; `scales` holds the four scales of rows `row` and `row` + 8. With kSmallScales none
// exceeds 127, and one product a pair is enough.
template <bool kSmallScales>
__device__ void WidenFp4(const uint8_t* keys, int row, const uint32_t (&scales)[2],
                         uint32_t (&a)[kDims / 16][4]) {
  const uint32_t one_byte = 0x4440u + threadIdx.x % 4;  // then bytes of the zero word
#pragma unroll
  for (int group = 0; group < kDims / kFp4Group; ++group) {
    const uint8_t* unit = keys + row * 64 + (group ^ (row / 2 % 4)) * 16;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 codes = *reinterpret_cast<const uint4*>(unit + j * 8 * 64);
      const uint32_t scale = (scales[j] >> (8 * group)) & 255u;
      const uint32_t factor = kSmallScales ? E2m1Factor(scale) : E8m0ToBf16x2(scale);
      const auto widen = [&](uint32_t four) {
        const uint32_t byte = PickBytes(four, 0, one_byte);
        return kSmallScales ? MultiplyBf16x2(SpreadE2m1Pair(byte), factor)
                            : WidenE2m1Pair(byte, factor);
      };
      a[2 * group][j] = widen(codes.x);
      a[2 * group][2 + j] = widen(codes.y);
      a[2 * group + 1][j] = widen(codes.z);
      a[2 * group + 1][2 + j] = widen(codes.w);
    }
  }
}

template <typename Tile>
__device__ void WidenKeys(const uint8_t* keys, int row, const uint32_t (&scales)[2],
                          uint32_t (&a)[kDims / 16][4]) {
  if constexpr (Tile::kFormat == IndexKeyFormat::kFp8) {
    WidenFp8(keys, row, a);
  } else if (__any_sync(~0u, ((scales[0] | scales[1]) & 0x80808080u) != 0)) {
    WidenFp4<false>(keys, row, scales, a);
  } else {
    WidenFp4<true>(keys, row, scales, a);
  }
}

// acc = keys of one tile times the queries of the group.
template <typename Tile>
__device__ void MultiplyTile(const uint8_t* keys, const uint8_t* query, int row,
                             const uint32_t (&scales)[2], float (&acc)[Tile::kColumns / 2]) {
  constexpr int kSteps = kDims / 16;
  constexpr int kStepBytes = 32;
  // The same in all threads; the shuffle lets the compiler know.
  const uint32_t query_address = __shfl_sync(~0u, SharedAddress(query), 0);
  const auto query_tile = [&](int step) {
    return RowTileDescriptor(query_address + step / 4 * Tile::kQueryHalfBytes +
                             step % 4 * kStepBytes);
  };
  if constexpr (Tile::kFormat == IndexKeyFormat::kBf16) {
    const uint32_t key_address = __shfl_sync(~0u, SharedAddress(keys), 0);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t at = step / 4 * (Tile::kPayloadBytes / 2) + step % 4 * kStepBytes;
      WgmmaSharedA(acc, RowTileDescriptor(key_address + at), query_tile(step), step != 0);
    }
  } else {
    uint32_t a[kSteps][4];
    WidenKeys<Tile>(keys, row, scales, a);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      WgmmaRegisterA(acc, a[step], query_tile(step), step != 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  HoldRegisters(acc);
}

// sums[token][0 / 1]: the scores of rows r and r + 8. w relu(x) = w (x + |x|) / 2 exactly, and both
// operations run at full rate, unlike a maximum.
template <typename Tile>
__device__ void SumHeads(const float (&acc)[Tile::kColumns / 2], const float* weight, int num_heads,
                         float (&sums)[Tile::kTokens][2]) {
  const int pair = threadIdx.x % 4;
#pragma unroll
  for (int token = 0; token < Tile::kTokens; ++token) {
    sums[token][0] = sums[token][1] = 0;
#pragma unroll
    for (int i = 0; i < kHeads / 8; ++i) {
      const int column = token * kHeads + 8 * i + 2 * pair;
      const float2 two = *reinterpret_cast<const float2*>(weight + column);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = 4 * (token * (kHeads / 8) + i) + j;
        const float w = j == 0 ? two.x : two.y;
        // Columns beyond the heads hold another token's queries.
        if (Tile::kTokens == 1 && num_heads < kHeads && column + j >= num_heads) continue;
        sums[token][0] = fmaf(w, acc[at] + fabsf(acc[at]), sums[token][0]);
        sums[token][1] = fmaf(w, acc[at + 2] + fabsf(acc[at + 2]), sums[token][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      sums[token][j] += __shfl_xor_sync(~0u, sums[token][j], 1);
      sums[token][j] += __shfl_xor_sync(~0u, sums[token][j], 2);
      sums[token][j] *= 0.5f;
    }
  }
}

// Where this thread stores scores of a token group. Of the four threads that hold a row's sums each
// stores one: (token, r), (token, r + 8), then the same of the second token.
struct ScoreRow {
  float* out;   // of the token
  int visible;  // 0 if this thread stores nothing
  int first;    // entry of tile 0
};
__device__ ScoreRow FindScoreRow(const IndexScoresArgs& args, int token, int tokens, int row) {
  const int which = threadIdx.x % 4;
  if (which >= 2 * tokens) return {args.scores, 0, 0};
  const int64_t at = token + which / 2;
  return {args.scores + at * args.score_stride, args.num_visible[at], row + 8 * (which % 2)};
}

template <typename Tile>
__device__ void StoreScore(const ScoreRow& row, int tile, const float (&sums)[Tile::kTokens][2]) {
  const int which = threadIdx.x % 4;
  float score = which % 2 == 0 ? sums[0][0] : sums[0][1];
  if constexpr (Tile::kTokens == 2) {
    if (which >= 2) score = which % 2 == 0 ? sums[1][0] : sums[1][1];
  }
  const int entry = tile * kEntries + row.first;
  if (entry < row.visible) row.out[entry] = score;
}

constexpr int kWarpsOfGroup = 4;

// A warpgroup's warps end their reads at different times: a buffer is free when all of them say so.
__device__ void ReleaseByWarp(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(barrier);
}

// One math warpgroup: its turns among the tiles of this block.
template <typename Tile>
__device__ void ScoreTiles(const IndexScoresArgs& args, IndexScoresShared<Tile>& shared) {
  const int group_index = threadIdx.x / 128;
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  int token = shared.first_token;
  int tile = shared.first_tile;
  int query = 0;
  uint32_t number = 0;  // of the first tile of this token group
  for (int64_t left = shared.num_tiles; left > 0;) {
    const TokenGroup group = GroupAt<Tile>(args, token);
    const int count = static_cast<int>(min(static_cast<int64_t>(group.tiles - tile), left));
    if (count > 0) {
      const int buffer = query % 2;
      BarrierWait(&shared.query_full[buffer], query / 2 % 2);
      const ScoreRow score_row = FindScoreRow(args, token, group.tokens, row);
      const int skip =
          (group_index + Tile::kMathGroups - number % Tile::kMathGroups) % Tile::kMathGroups;
      for (int i = skip; i < count; i += Tile::kMathGroups) {
        const uint32_t stage = (number + i) % Tile::kStages;
        BarrierWait(&shared.key_full[stage], (number + i) / Tile::kStages % 2);
        const uint32_t* scale = reinterpret_cast<const uint32_t*>(shared.scale[stage]);
        uint32_t scales[2] = {0, 0};
        if constexpr (Tile::kFormat != IndexKeyFormat::kBf16) {
          scales[0] = scale[row];
          scales[1] = scale[row + 8];
        }
        float acc[Tile::kColumns / 2];
        MultiplyTile<Tile>(shared.keys[stage], shared.query[buffer], row, scales, acc);
        ReleaseByWarp(&shared.key_empty[stage]);
        float sums[Tile::kTokens][2];
        SumHeads<Tile>(acc, shared.weight[buffer], static_cast<int>(args.num_heads), sums);
        if constexpr (Tile::kFormat == IndexKeyFormat::kFp8) {
          for (int t = 0; t < Tile::kTokens; ++t) {
            sums[t][0] *= __uint_as_float(scales[0]);
            sums[t][1] *= __uint_as_float(scales[1]);
          }
        }
        StoreScore<Tile>(score_row, tile + i, sums);
      }
      ReleaseByWarp(&shared.query_empty[buffer]);
      ++query;
    }
    number += count;
    left -= count;
    tile = 0;
    token += group.tokens;
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    IndexScoresKernel(const __grid_constant__ IndexScoresArgs args,
                      const __grid_constant__ IndexScoresMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<IndexScoresShared<Tile>*>(smem);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      BarrierInit(&shared.key_full[i], 1);
      BarrierInit(&shared.key_empty[i], kWarpsOfGroup);
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(&shared.query_full[i], 1);
      BarrierInit(&shared.query_empty[i], kWarpsOfGroup * Tile::kMathGroups);
    }
    BarrierInitFence();
  }
  WaitForPreviousKernel();
  AllowNextKernel();
  FindShare(args, shared);
  __syncthreads();
  if (threadIdx.x >= Tile::kMathThreads) {
    LoadTiles(args, maps, shared);
  } else {
    ScoreTiles(args, shared);
  }
#endif
}

IndexScoresMaps MakeMaps(const IndexScoresArgs& args, int columns) {
  const int64_t row_bytes = IndexKeyRowBytes(args.format, kDims).payload;
  const uint32_t box_bytes = row_bytes >= 128 ? 128 : 64;
  return {.keys = MakeTensorMap({.data = args.keys.payload,
                                 .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                 .rank = 3,
                                 .size = {static_cast<uint64_t>(row_bytes), kEntries,
                                          static_cast<uint64_t>(args.keys.num_blocks)},
                                 .stride = {static_cast<uint64_t>(row_bytes),
                                            static_cast<uint64_t>(args.keys.payload_block_stride)},
                                 .box = {box_bytes, kEntries, 1},
                                 .swizzle = box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                             : CU_TENSOR_MAP_SWIZZLE_64B}),
          .query = MakeTensorMap(
              {.data = args.q,
               .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               .rank = 2,
               .size = {kDims, static_cast<uint64_t>(args.num_tokens * args.num_heads)},
               .stride = {kDims * 2},
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
  if (args.num_heads == kHeads && args.num_tokens > args.num_seqs) {
    LaunchTile<kFormat, 2>(args, stream);
  } else {
    LaunchTile<kFormat, 1>(args, stream);
  }
}

}  // namespace

// kernels/cuda/index_scores_portable.cu
void LaunchIndexScoresPortable(const IndexScoresArgs& args, cudaStream_t stream);

IndexScoresPath ChooseIndexScoresPath(const IndexScoresArgs& args) {
  const bool fits = CurrentDevice().sm90 && args.head_dim == kDims && args.num_heads <= kHeads &&
                    args.num_heads % 4 == 0 && args.keys.payload_block_stride % 16 == 0 &&
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

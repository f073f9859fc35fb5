#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_ticket.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/widen_keys.cuh"

// The math warpgroups of the index scores kernel: products of key tiles with queries on the tensor
// cores, then the sum over heads.
namespace lodestone::cuda {

// Brings the queries of one buffer into the order of widened keys. By all math threads.
template <typename Tile>
__device__ void ArrangeQuery(uint8_t* query) {
  for (int i = threadIdx.x; i < Tile::kColumns * (IndexDims::kDims / 16); i += Tile::kMathThreads) {
    const int column = i % Tile::kColumns;
    const int step = i / Tile::kColumns;
    uint8_t* const row = query + step / 4 * Tile::kQueryHalfBytes + column * 128;
    const int unit = (step % 4 * 2) ^ (column % 8);
    ArrangeDims<Tile::kFormat>(*reinterpret_cast<uint4*>(row + unit * 16),
                               *reinterpret_cast<uint4*>(row + (unit ^ 1) * 16));
  }
  SharedProxyFence();
  NamedBarrierSync(1, Tile::kMathThreads);
}

// What a math thread knows of its block's shared memory, found once: the compiler would find it
// again for every tile.
template <typename Tile>
struct MathView {
  using Shared = IndexScoresShared<Tile>;
  uint32_t base;  // shared address
  KeyLane lane;
  __device__ uint32_t keys(uint32_t stage) const {
    return base + static_cast<uint32_t>(offsetof(Shared, keys)) + stage * Tile::kPayloadBytes;
  }
  __device__ uint32_t scale(uint32_t stage) const {
    return base + static_cast<uint32_t>(offsetof(Shared, scale)) + stage * (kTileEntries * 4);
  }
  __device__ uint32_t factors(uint32_t stage) const {
    return base + static_cast<uint32_t>(offsetof(Shared, factors)) + stage * (kTileEntries * 8) +
           2 * lane.scale;
  }
  __device__ void WaitForKeys(uint32_t number) const {
    BarrierWait(
        base + static_cast<uint32_t>(offsetof(Shared, key_full)) + number % Tile::kStages * 8,
        number / Tile::kStages % 2);
  }
  __device__ void ReleaseKeys(uint32_t number) const {
    __syncwarp();  // all lanes have read
    if (threadIdx.x % 32 != 0) return;
    BarrierArrive(base + static_cast<uint32_t>(offsetof(Shared, key_empty)) +
                  number % Tile::kStages * 8);
  }
};

__device__ constexpr uint64_t DescriptorStep(int step, int half_bytes) {
  return static_cast<uint64_t>((step / 4 * half_bytes + step % 4 * 32) / 16);
}

// The queries of the buffer at shared address `query`. The same in all threads; the shuffle lets
// the compiler know.
__device__ inline uint64_t QueryDescriptor(uint32_t query) {
  return RowTileDescriptor(__shfl_sync(~0u, query, 0));
}

// Starts acc (+)= a quarter of the dims of widened keys times those of the queries. The products of
// one tile end before its next branch: the compiler would wait for each of them otherwise.
template <typename Tile>
__device__ void StartQuarter(const uint32_t (&a)[8][4], uint64_t queries, int quarter,
                             float (&acc)[Tile::kColumns / 2]) {
  WgmmaFence();
#pragma unroll
  for (int step = 2 * quarter; step < 2 * quarter + 2; ++step) {
    WgmmaRegisterA(acc, a[step], queries + DescriptorStep(step, Tile::kQueryHalfBytes), step != 0);
  }
  WgmmaCommit();
}

// Starts acc = bf16 keys times the queries; the keys at shared address `keys`.
template <typename Tile>
__device__ void StartProducts(uint32_t keys, uint32_t query, float (&acc)[Tile::kColumns / 2]) {
  // The same in all threads; the shuffle lets the compiler know.
  const uint64_t key_tile = RowTileDescriptor(__shfl_sync(~0u, keys, 0));
  const uint64_t queries = QueryDescriptor(query);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < IndexDims::kDims / 16; ++step) {
    WgmmaSharedA(acc, key_tile + DescriptorStep(step, Tile::kPayloadBytes / 2),
                 queries + DescriptorStep(step, Tile::kQueryHalfBytes), step != 0);
  }
  WgmmaCommit();
}

template <int kSize>
__device__ void FinishProducts(float (&acc)[kSize]) {
  WgmmaWait<0>();
  HoldRegisters(acc);
}

// Weights of this thread's columns of one token: heads 8 i + 2 (t % 4) + {0, 1}.
__device__ inline void LoadWeights(const float* weight, float2 (&mine)[IndexDims::kHeads / 8]) {
#pragma unroll
  for (int i = 0; i < IndexDims::kHeads / 8; ++i) {
    mine[i] = *reinterpret_cast<const float2*>(weight + 8 * i + threadIdx.x % 4 * 2);
  }
}

// The score of row r (threads 0, 2 of a quad) or r + 8 (1, 3) of one token, whose accumulators
// start at acc[kFirst]. w relu(x) = w (x + |x|) / 2 exactly, and both operations run at full rate,
// unlike a maximum. Without kAllHeads, columns beyond the heads hold another token's queries.
template <bool kAllHeads, int kFirst, int kSize>
__device__ float SumHeads(const float (&acc)[kSize], const float2 (&weight)[IndexDims::kHeads / 8],
                          int num_heads) {
  const int thread = threadIdx.x % 4;
  float sums[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < IndexDims::kHeads / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!kAllHeads && 8 * i + 2 * thread + j >= num_heads) continue;
      const int at = kFirst + 4 * i + j;
      const float w = j == 0 ? weight[i].x : weight[i].y;
      sums[0] = fmaf(w, acc[at] + fabsf(acc[at]), sums[0]);
      sums[1] = fmaf(w, acc[at + 2] + fabsf(acc[at + 2]), sums[1]);
    }
  }
  const float other = __shfl_xor_sync(~0u, thread % 2 == 0 ? sums[1] : sums[0], 1);
  const float sum = (thread % 2 == 0 ? sums[0] : sums[1]) + other;
  return 0.5f * (sum + __shfl_xor_sync(~0u, sum, 2));
}

// Where this thread stores scores of a token group. Of the four threads that hold a row's sums each
// stores one: (token, r), (token, r + 8), then the same of the second token.
struct ScoreRow {
  float* out;   // of the token
  int visible;  // 0 if this thread stores nothing
  int first;    // entry of tile 0
};
__device__ inline ScoreRow FindScoreRow(const IndexScoresArgs& args, int token, int tokens,
                                        int row) {
  const int which = threadIdx.x % 4;
  if (which >= 2 * tokens) return {args.scores, 0, 0};
  const int64_t at = token + which / 2;
  return {args.scores + at * args.score_stride, args.num_visible[at], row + 8 * (which % 2)};
}

// A token group's part of this block: tiles [tile, tile + count), the block's from `number` on.
template <typename Tile>
struct GroupMath {
  MathView<Tile> view;
  uint32_t query;       // shared address
  const float* weight;  // shared
  int num_heads;
  ScoreRow row;
  int tile;
  int count;
  uint32_t number;
  float2 kept_weight[IndexDims::kHeads / 8];

  // Stores the scores of tile `i`; the products are `factor` times too small.
  template <bool kAllHeads>
  __device__ void Store(int i, const float (&acc)[Tile::kColumns / 2], float factor) {
    if constexpr (!Tile::kKeepsWeights) LoadWeights(weight, kept_weight);
    float score = SumHeads<kAllHeads, 0>(acc, kept_weight, num_heads);
    if constexpr (Tile::kTokens == 2) {
      LoadWeights(weight + IndexDims::kHeads, kept_weight);
      const float second =
          SumHeads<true, IndexDims::kHeads / 2>(acc, kept_weight, IndexDims::kHeads);
      if (threadIdx.x % 4 >= 2) score = second;
    }
    const int entry = (tile + i) * kTileEntries + row.first;
    if (entry < row.visible) row.out[entry] = Tile::kWidens ? score * factor : score;
  }
  // acc = fp8 keys of tile `i` times the queries; returns what it must be multiplied by. Each
  // quarter is multiplied while the next one is widened.
  __device__ float MultiplyFp8(int i, float (&acc)[Tile::kColumns / 2]) const {
    const uint32_t stage = (number + i) % Tile::kStages;
    const RowScales scales = LoadScales(view.scale(stage), view.lane);
    uint32_t a[8][4];
    uint64_t queries = 0;
    const auto multiply = [&](int quarter) {
      if (quarter == 0) queries = QueryDescriptor(query);
      StartQuarter<Tile>(a, queries, quarter, acc);
      if (quarter == 3) FinishProducts(acc);
    };
    WidenFp8(view.keys(stage), view.lane, multiply, a);
    return __uint_as_float(threadIdx.x % 2 == 0 ? scales.rows[0] : scales.rows[1]);
  }
  template <typename Row>
  __device__ void MultiplyCodes(const Fp4Codes& codes, const Row (&rows)[2],
                                float (&acc)[Tile::kColumns / 2]) const {
    uint32_t a[8][4];
    uint64_t queries = 0;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      codes.Widen(quarter, view.lane, rows, a);
      if (quarter == 0) queries = QueryDescriptor(query);
      StartQuarter<Tile>(a, queries, quarter, acc);
    }
    FinishProducts(acc);
  }
  // The same of fp4 keys.
  __device__ float MultiplyFp4(int i, float (&acc)[Tile::kColumns / 2]) const {
    const uint32_t stage = (number + i) % Tile::kStages;
    const uint32_t factors = view.factors(stage);
    const ModerateRow rows[2] = {{LoadSharedPair(factors)}, {LoadSharedPair(factors + 8 * 8)}};
    Fp4Codes codes;
    codes.Load(view.keys(stage), view.lane);
    if (rows[0].factors.x != 0) {
      MultiplyCodes(codes, rows, acc);
      return kModerateUnit;
    }
    const RowScales scales = LoadScales(view.scale(stage), view.lane);
    const AnyRow any[2] = {{scales.rows[0]}, {scales.rows[1]}};
    MultiplyCodes(codes, any, acc);
    return 1;
  }
  // One tile after the other.
  template <bool kAllHeads>
  __device__ void Run(int first) {
    for (int i = first; i < count; i += Tile::kMathGroups) {
      float acc[Tile::kColumns / 2];
      float factor = 1;
      view.WaitForKeys(number + i);
      if constexpr (Tile::kFormat == IndexKeyFormat::kFp8) {
        factor = MultiplyFp8(i, acc);
      } else if constexpr (Tile::kFormat == IndexKeyFormat::kFp4) {
        factor = MultiplyFp4(i, acc);
      } else {
        StartProducts<Tile>(view.keys((number + i) % Tile::kStages), query, acc);
        FinishProducts(acc);
      }
      view.ReleaseKeys(number + i);
      Store<kAllHeads>(i, acc, factor);
    }
  }
};

// Gives the queries of one buffer back. By a whole warp.
template <typename Tile>
__device__ void ReleaseQuery(int buffer, IndexScoresShared<Tile>& shared) {
  __syncwarp();  // all lanes have read
  if (threadIdx.x % 32 == 0) BarrierArrive(&shared.query_empty[buffer]);
}

// One math warpgroup: its turns among the tiles of this block.
template <typename Tile>
__device__ void ScoreTiles(const IndexScoresArgs& args, const IndexShare& share,
                           IndexScoresShared<Tile>& shared) {
  const int member = threadIdx.x / 128;
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  GroupMath<Tile> math{};
  math.view.base = SharedAddress(&shared);
  asm volatile("" : "+r"(math.view.base));
  if constexpr (Tile::kWidens) {
    math.view.lane =
        FindKeyLane<Tile::kFormat>(row, LoadShared(SharedAddress(&shared.e2m1_table_low)));
  }
  math.num_heads = static_cast<int>(args.num_heads);
  int index = 0;  // of the queries
  const auto score = [&](const IndexPart& part) {
    if (part.slot >= 0) ReleaseItem(part.slot, shared);
    if (part.new_group) {
      if (Tile::kDeals && index > 0) ReleaseQuery((index - 1) % 2, shared);
      const int buffer = index % 2;
      BarrierWait(&shared.query_full[buffer], index / 2 % 2);
      if constexpr (Tile::kWidens) ArrangeQuery<Tile>(shared.query[buffer]);
      math.query = SharedAddress(shared.query[buffer]);
      math.weight = shared.weight[buffer];
      if constexpr (Tile::kKeepsWeights) LoadWeights(math.weight, math.kept_weight);
      math.row = FindScoreRow(args, part.token, part.group.tokens, row);
      ++index;
    }
    math.tile = part.tile;
    math.count = part.count;
    math.number = part.number;
    const int first = TurnOf<Tile::kMathGroups>(member, part.number);
    if (math.num_heads != IndexDims::kHeads) {
      math.template Run<false>(first);
    } else {
      math.template Run<true>(first);
    }
    if (!Tile::kDeals) ReleaseQuery((index - 1) % 2, shared);
  };
  ForEachPart(args, share, shared, score);
}

}  // namespace lodestone::cuda

#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_integers.cuh"
#include "kernels/cuda/device/index_query.cuh"
#include "kernels/cuda/device/index_ticket.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/index_view.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/wgmma_integer.cuh"
#include "kernels/cuda/device/widen_keys.cuh"

// The math warpgroups of the index scores kernel: products of key tiles with queries on the tensor
// cores, then the sum over heads.
namespace lodestone::cuda {

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

template <typename T, int kSize>
__device__ void FinishProducts(T (&acc)[kSize]) {
  WgmmaWait<0>();
  HoldRegisters(acc);
}

// A token group's part of this block: tiles [tile, tile + count), the block's from `number` on.
template <typename Tile>
struct GroupMath {
  using Shared = IndexScoresShared<Tile>;
  MathView<Tile> view;
  uint32_t query;       // shared address
  const float* weight;  // shared
  int num_heads;
  ScoreRow row;
  int tile;
  int count;
  uint32_t number;
  float2 kept_weight[IndexDims::kHeads / 8];
  // kFp4, if the queries are integers, too; the weights above are those of integers then.
  bool has_integers;
  uint64_t integer_query;  // descriptor
  const float* float_weight;

  // Prepares the queries of a buffer, kFp4.
  __device__ void UseQuery(int buffer, const IndexPart& part, Shared& shared) {
    bool fit = false;
    if (part.count <= Tile::kFewTiles) {
      ArrangeQuery<Tile>(shared.query[buffer]);
    } else {
      fit = ArrangeIntegers(buffer, part.group.tokens * num_heads, shared);
    }
    SharedProxyFence();
    has_integers = NamedBarrierAll(1, Tile::kMathThreads, fit);
    integer_query = QueryDescriptor(SharedAddress(shared.integers.query[buffer]));
    float_weight = weight;
    if (has_integers) weight = shared.integers.weight[buffer];
  }
  // Stores the scores of tile `i`; what SumHeads gives with `weights`, the kept ones if they are
  // kept, is `factor` times too small.
  template <bool kAllHeads, typename T>
  __device__ void Store(int i, const T (&acc)[Tile::kColumns / 2], const float* weights,
                        float factor) {
    if constexpr (!Tile::kKeepsWeights) LoadWeights(weights, kept_weight);
    float score = SumHeads<kAllHeads, 0>(acc, kept_weight, num_heads);
    if constexpr (Tile::kTokens == 2) {
      LoadWeights(weights + IndexDims::kHeads, kept_weight);
      const float second =
          SumHeads<true, IndexDims::kHeads / 2>(acc, kept_weight, IndexDims::kHeads);
      if (threadIdx.x % 4 >= 2) score = second;
    }
    const int entry = (tile + i) * kTileEntries + row.first;
    if (entry < row.visible) row.out[entry] = score * factor;
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
  // acc = fp4 keys times the queries, by rows of AnyRow or ModerateRow.
  template <typename Row>
  __device__ void MultiplyFp4(uint32_t stage, float (&acc)[Tile::kColumns / 2]) const {
    const KeyLane lane = FindKeyLane<Tile::kFormat>(FirstRow(), view.table_low());
    const RowScales scales = LoadScales(view.scale(stage), lane);
    const Row rows[2] = {Row(scales.rows[0]), Row(scales.rows[1])};
    Fp4Codes codes;
    codes.Load(view.keys(stage), lane);
    uint32_t a[8][4];
    uint64_t queries = 0;
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      codes.Widen(quarter, lane, rows, a);
      if (quarter == 0) queries = QueryDescriptor(query);
      StartQuarter<Tile>(a, queries, quarter, acc);
    }
    FinishProducts(acc);
  }
  // acc = keys of integers times those of the queries.
  __device__ void MultiplyIntegers(uint32_t stage, const IntegerTable (&tables)[2],
                                   int32_t (&acc)[Tile::kColumns / 2]) const {
    const uint32_t keys = view.keys(stage) + view.integer_lane.keys;
    const uint4 first = LoadSharedQuad(keys);
    const uint4 second = LoadSharedQuad(keys + 8 * 64);
    const uint32_t words[2][4] = {{first.x, first.y, first.z, first.w},
                                  {second.x, second.y, second.z, second.w}};
    uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WidenIntegers(words[0][step], words[1][step], tables, view.integer_lane, a[step]);
      WgmmaFence();
      WgmmaRegisterA(acc, a[step], integer_query + DescriptorStep(step, 0), step != 0);
      WgmmaCommit();
    }
    FinishProducts(acc);
  }
  // Scores of tile `i` by products of integers, whose first row has the multiplier `first`.
  template <bool kAllHeads>
  __device__ void ScoreIntegers(int i, uint32_t stage, uint32_t first) {
    const uint32_t second = LoadSharedByte(view.multipliers(stage) + 8 * 4);
    const IntegerTable tables[2] = {view.Table(first), view.Table(second)};
    int32_t acc[Tile::kColumns / 2];
    MultiplyIntegers(stage, tables, acc);
    const float factor = __uint_as_float(LoadShared(view.factor(stage)));
    view.ReleaseKeys(number + i);
    Store<kAllHeads>(i, acc, weight, factor);
  }
  // Scores of tile `i` of fp4 keys.
  template <bool kAllHeads>
  __device__ void ScoreFp4(int i) {
    uint32_t stage = (number + i) % Tile::kStages;
    asm volatile("" : "+r"(stage));  // else the compiler finds it again for every use
    const uint32_t first = LoadSharedByte(view.multipliers(stage));
    if (has_integers && first != 0) {
      ScoreIntegers<kAllHeads>(i, stage, first);
      return;
    }
    float acc[Tile::kColumns / 2];
    const bool moderate = Tile::kKeepsWeights && first != 0;
    if (moderate) {
      MultiplyFp4<ModerateRow>(stage, acc);
    } else {
      MultiplyFp4<AnyRow>(stage, acc);
    }
    view.ReleaseKeys(number + i);
    LoadWeights(float_weight, kept_weight);
    for (float2& one : kept_weight) {
      if (moderate) one = {one.x * ModerateRow::kUnit, one.y * ModerateRow::kUnit};
    }
    Store<kAllHeads>(i, acc, float_weight, 0.5f);
    LoadWeights(weight, kept_weight);  // less than keeping them through the products above
  }
  // Scores of tile `i` of other keys.
  template <bool kAllHeads>
  __device__ void ScoreOthers(int i) {
    float acc[Tile::kColumns / 2];
    float factor = 1;
    if constexpr (Tile::kFormat == IndexKeyFormat::kFp8) {
      factor = MultiplyFp8(i, acc);
    } else {
      StartProducts<Tile>(view.keys((number + i) % Tile::kStages), query, acc);
      FinishProducts(acc);
    }
    view.ReleaseKeys(number + i);
    Store<kAllHeads>(i, acc, weight, 0.5f * factor);
  }
  // One tile after the other.
  template <bool kAllHeads>
  __device__ void Run(int first) {
    for (int i = first; i < count; i += Tile::kMathGroups) {
      view.WaitForKeys(number + i);
      if constexpr (Tile::kFormat == IndexKeyFormat::kFp4) {
        ScoreFp4<kAllHeads>(i);
      } else {
        ScoreOthers<kAllHeads>(i);
      }
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
  GroupMath<Tile> math{};
  math.view.base = SharedAddress(&shared);
  asm volatile("" : "+r"(math.view.base));
  if constexpr (Tile::kFormat == IndexKeyFormat::kFp8) {
    math.view.lane = FindKeyLane<Tile::kFormat>(FirstRow(), 0);
  }
  if constexpr (Tile::kHasIntegers) {
    const uint32_t minus_one = LoadShared(SharedAddress(&shared.minus_one));
    math.view.integer_lane = FindIntegerLane(FirstRow(), minus_one);
  }
  math.num_heads = static_cast<int>(args.num_heads);
  int index = 0;  // of the queries
  const auto score = [&](const IndexPart& part) {
    if (part.slot >= 0) ReleaseItem(part.slot, shared);
    if (part.new_group) {
      if (Tile::kDeals && index > 0) ReleaseQuery((index - 1) % 2, shared);
      const int buffer = index % 2;
      BarrierWait(&shared.query_full[buffer], index / 2 % 2);
      math.query = SharedAddress(shared.query[buffer]);
      math.weight = shared.weight[buffer];
      if constexpr (Tile::kHasIntegers) {
        math.UseQuery(buffer, part, shared);
      } else if constexpr (Tile::kWidens) {
        ArrangeQuery<Tile>(shared.query[buffer]);
        SharedProxyFence();
        NamedBarrierSync(1, Tile::kMathThreads);
      }
      if constexpr (Tile::kKeepsWeights) LoadWeights(math.weight, math.kept_weight);
      math.row = FindScoreRow(args, part.token, part.group.tokens, FirstRow());
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

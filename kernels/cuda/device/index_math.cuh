#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_integers.cuh"
#include "kernels/cuda/device/index_products.cuh"
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
  __device__ void UseQuery(const QueryDims& dims, int buffer, const IndexPart& part,
                           Shared& shared) {
    bool fit = false;
    if constexpr (Tile::kFetchesQueries) {
      fit = StoreQuery(dims, part.count > Tile::kFewTiles, buffer, shared);
    } else if (part.count <= Tile::kFewTiles) {
      ArrangeQuery<Tile>(shared.query[buffer]);
    } else {
      fit = ArrangeIntegers(buffer, part.group.tokens * num_heads, shared);
    }
    SharedProxyFence();
    has_integers = NamedBarrierAll(1, Tile::kMathThreads, fit);
    if constexpr (!Tile::kOneQuery) {
      integer_query =
          RowTileDescriptor(SharedAddress(shared.integers.query[0]) +
                            buffer * static_cast<uint32_t>(sizeof(shared.integers.query[0])));
    }
    float_weight = weight;
    if (has_integers) weight = shared.integers.weight[buffer];
  }
  // This thread's of tile `i`.
  __device__ int Entry(int i) const { return (tile + i) * kTileEntries + row.first; }
  // Stores the score of this thread's `entry`; what SumHeads gives with `weights`, the kept ones if
  // they are kept, is `factor` times too small.
  template <bool kAllHeads, typename T>
  __device__ void Store(int entry, const T (&acc)[Tile::kColumns / 2], const float* weights,
                        float factor) {
    if constexpr (!Tile::kKeepsWeights) LoadWeights(weights, kept_weight);
    float score = SumHeads<kAllHeads, 0>(acc, kept_weight, num_heads);
    if constexpr (Tile::kTokens == 2) {
      LoadWeights(weights + IndexDims::kHeads, kept_weight);
      const float second =
          SumHeads<true, IndexDims::kHeads / 2>(acc, kept_weight, IndexDims::kHeads);
      if (threadIdx.x % 4 >= 2) score = second;
    }
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
  // acc = keys of integers, codes of this thread's two rows, times those of the queries.
  __device__ void MultiplyIntegers(const uint4& first, const uint4& second,
                                   const IntegerTable (&tables)[2],
                                   int32_t (&acc)[Tile::kColumns / 2]) const {
    const uint32_t words[2][4] = {{first.x, first.y, first.z, first.w},
                                  {second.x, second.y, second.z, second.w}};
    uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WidenIntegers(words[0][step], words[1][step], tables, view.integer_lane, a[step]);
    }
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaRegisterA(acc, a[step], AdvanceTile(integer_query, step * 32), step != 0);
    }
    WgmmaCommit();
  }
  // Scores of a tile by products of integers; calls meanwhile() while these are on their way.
  template <bool kAllHeads, typename F>
  __device__ void ScoreIntegers(int entry, const IntegerPlaces& start, const ArrivedKeys& keys,
                                const F& meanwhile) {
    const IntegerPlaces at = start.Further(keys.stages);
    const IntegerTable tables[2] = {view.Table(keys.multipliers[0]),
                                    view.Table(keys.multipliers[1])};
    const uint4 first = LoadSharedQuad(at.keys);
    const uint4 second = LoadSharedQuad(at.keys + 8 * 64);
    int32_t acc[Tile::kColumns / 2];
    const float factor = __uint_as_float(LoadShared(at.factor));
    MultiplyIntegers(first, second, tables, acc);
    view.ReleaseKeysAt(at.barrier);
    meanwhile();
    FinishProducts(acc);
    Store<kAllHeads>(entry, acc, weight, factor);
  }
  // Scores of tile `i` of fp4 keys by bf16 products; `first` is the first row's multiplier.
  template <bool kAllHeads>
  __device__ void ScoreFloats(int i, uint32_t stage, uint32_t first) {
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
    Store<kAllHeads>(Entry(i), acc, float_weight, 0.5f);
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
    Store<kAllHeads>(Entry(i), acc, weight, 0.5f * factor);
  }
  // fp4 keys, one tile after the other. The stages of this warpgroup follow each other, so that few
  // instructions find a tile's places.
  template <bool kAllHeads>
  __device__ void RunFp4(int first) {
    const IntegerPlaces start = view.PlacesOf(threadIdx.x / 128);
    if (first >= count) return;
    constexpr int kStep = Tile::kMathGroups * kTileEntries;
    uint32_t turn = (number + first) / Tile::kMathGroups;
    const uint32_t end = turn + (count - first + Tile::kMathGroups - 1) / Tile::kMathGroups;
    const int entry = Entry(first) - static_cast<int>(turn) * kStep;  // of turn 0
    ArrivedKeys next{};
    if constexpr (Tile::kWaitsAhead) next = view.WaitForTurn(start, turn);
    do {
      const ArrivedKeys keys = Tile::kWaitsAhead ? next : view.WaitForTurn(start, turn);
      const int here = entry + static_cast<int>(turn) * kStep;
      ++turn;
      const auto wait = [&] {
        if (Tile::kWaitsAhead && turn != end) next = view.WaitForTurn(start, turn);
      };
      if (has_integers && keys.multipliers[0] != 0) {
        ScoreIntegers<kAllHeads>(here, start, keys, wait);
      } else {
        const int i = (here - Entry(0)) / kTileEntries;
        ScoreFloats<kAllHeads>(i, (number + i) % Tile::kStages, keys.multipliers[0]);
        wait();
      }
    } while (turn != end);
  }
  // One tile after the other.
  template <bool kAllHeads>
  __device__ void Run(int first) {
    if constexpr (Tile::kFormat == IndexKeyFormat::kFp4) {
      RunFp4<kAllHeads>(first);
    } else {
      for (int i = first; i < count; i += Tile::kMathGroups) {
        view.WaitForKeys(number + i);
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
  if constexpr (Tile::kOneQuery) {
    math.integer_query = RowTileDescriptor(SharedAddress(shared.integers.query[0]));
  }
  QueryDims dims;
  if constexpr (Tile::kFetchesQueries) {
    WaitForPreviousKernel();  // which may write queries and weights, and still read the scores
    if (share.num_tiles > 0) dims.Load(args, share.first_token);
  }
  int index = 0;  // of the queries
  const auto score = [&](const IndexPart& part) {
    if (part.slot >= 0) ReleaseItem(part.slot, shared);
    if (part.new_group) {
      if (Tile::kDeals && index > 0) ReleaseQuery((index - 1) % 2, shared);
      const int buffer = index % 2;
      if (Tile::kFetchesQueries && index > 0) dims.Load(args, part.token);
      math.row = FindScoreRow(args, part.token, part.group.tokens, FirstRow());
      if (!Tile::kFetchesQueries) {
        if (index == 0) WaitForPreviousKernel();  // which may still read the scores
        BarrierWait(&shared.query_full[buffer], index / 2 % 2);
      }
      math.query = SharedAddress(shared.query[buffer]);
      math.weight = shared.weight[buffer];
      if constexpr (Tile::kHasIntegers) {
        // The products of the token before have ended.
        if (Tile::kOneQuery && index > 0) NamedBarrierSync(1, Tile::kMathThreads);
        math.UseQuery(dims, buffer, part, shared);
      } else if constexpr (Tile::kWidens) {
        ArrangeQuery<Tile>(shared.query[buffer]);
        SharedProxyFence();
        NamedBarrierSync(1, Tile::kMathThreads);
      }
      if constexpr (Tile::kKeepsWeights) LoadWeights(math.weight, math.kept_weight);
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
    if (!Tile::kDeals && !Tile::kFetchesQueries) ReleaseQuery((index - 1) % 2, shared);
  };
  ForEachPart(args, share, shared, score);
  // A launch that ends before the one ahead would let the next one start too early.
  if (!Tile::kFetchesQueries && index == 0) WaitForPreviousKernel();
}

}  // namespace lodestone::cuda

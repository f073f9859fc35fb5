#pragma once

#include <cstdint>

#include "kernels/cuda/device/index_integers.cuh"
#include "kernels/cuda/device/index_tile.cuh"
#include "kernels/cuda/device/widen_keys.cuh"

// What the math warpgroups of the index scores kernel do with queries and weights: the order of the
// dims, queries as integers, and the sum over heads.
namespace lodestone::cuda {

// 16 dims of a query as integers, four a word. By the eight threads in a row that have all its
// dims.
struct IntegerQuery {
  static constexpr uint32_t kBias = 127;  // of a float's exponent
  static constexpr uint32_t kTopBit = 6;  // the largest magnitude becomes 64 to 127
  uint32_t words[4];
  float unit;  // value = integer * unit
  bool fits;   // the 16 dims are integers

  __device__ IntegerQuery(const uint4& first, const uint4& second) {
    const uint32_t pairs[8] = {first.x,  first.y,  first.z,  first.w,
                               second.x, second.y, second.z, second.w};
    uint32_t largest_pair = 0;
    uint32_t smallest_pair = ~0u;  // less 1, but of zeros
#pragma unroll
    for (uint32_t pair : pairs) {
      const uint32_t magnitudes = pair & 0x7fff7fffu;
      largest_pair = __vmaxu2(largest_pair, magnitudes);
      smallest_pair = __viaddmin_u16x2(magnitudes, ~0u, smallest_pair);
    }
    for (int offset = 1; offset < 8; offset *= 2) {
      largest_pair = __vmaxu2(largest_pair, __shfl_xor_sync(~0u, largest_pair, offset));
    }
    const uint32_t smallest = min(smallest_pair & 0xffffu, smallest_pair >> 16) + 1;
    const uint32_t largest = max(largest_pair & 0xffffu, largest_pair >> 16);
    const uint32_t exponent = largest == 0 ? kBias : largest >> 7;
    unit = __uint_as_float((exponent - kTopBit) << 23);
    const float scale = __uint_as_float((2 * kBias + kTopBit - exponent) << 23);  // 1 / unit
    uint32_t rest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t sums[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t pair = pairs[2 * i + j / 2];
        const float value = __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        // The low bytes are the fraction, of which bf16 numbers from 1 on have 7 bits, and the
        // integer. Conversions would run at a quarter of the rate.
        constexpr float kCountsIn256ths = 3 << 14;
        sums[j] = __float_as_uint(fmaf(value, scale, kCountsIn256ths));
        rest |= sums[j];
      }
      words[i] = __byte_perm(__byte_perm(sums[0], sums[1], 0x0051),
                             __byte_perm(sums[2], sums[3], 0x0051), 0x5410);
    }
    fits = (rest & 255u) == 0 && smallest >= (exponent - kTopBit) << 7 &&
           exponent - (kBias - kQueryExponent) <= 2 * kQueryExponent;
  }
  // As dims 16 step .. 16 step + 15 of a column's row of 128 bytes, in the order of the keys:
  // thread t of a quad has dims 32 t + 8 i .. 32 t + 8 i + 7 of k-step i, the second four 16
  // columns further.
  __device__ void Store(uint8_t* columns, int column, int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (step % 2 * 2 + i / 2) * 32 + i % 2 * 16 + step / 2 * 4;
      const int unit = at / 16 ^ (column % 8);
      *reinterpret_cast<uint32_t*>(columns + column * 128 + unit * 16 + at % 16) = words[i];
    }
  }
  static __device__ bool FitsWeight(float weight, float scaled) {
    return weight == 0 || (fabsf(scaled) >= kSmallestWeight && fabsf(scaled) <= kLargestWeight);
  }
};

// By one thread, before the others read them.
template <typename Tile>
__device__ void StoreTables(IndexScoresShared<Tile>& shared) {
  for (int place : {1, 2, 3}) {
    shared.integers.tables[place] = IntegerTable(1u << (place - 1)).Pack();
  }
}

// Brings the queries of one buffer into the order of widened keys. By all math threads; the caller
// synchronises.
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
}

// The same, and makes integers of them: returns whether this thread's of the first `columns` are.
template <typename Tile>
__device__ bool ArrangeIntegers(int buffer, int columns, IndexScoresShared<Tile>& shared) {
  constexpr int kSteps = IndexDims::kDims / 16;  // of a column; a thread each
  auto& integers = shared.integers;
  bool fit = true;
  for (int i = threadIdx.x; i < Tile::kColumns * kSteps; i += Tile::kMathThreads) {
    const int column = i / kSteps;
    const int step = i % kSteps;
    uint8_t* const row = shared.query[buffer] + step / 4 * Tile::kQueryHalfBytes + column * 128;
    const int unit = (step % 4 * 2) ^ (column % 8);
    uint4& first = *reinterpret_cast<uint4*>(row + unit * 16);
    uint4& second = *reinterpret_cast<uint4*>(row + (unit ^ 1) * 16);
    const IntegerQuery mine(first, second);
    ArrangeDims<Tile::kFormat>(first, second);
    mine.Store(integers.query[buffer], column, step);
    const float weight = shared.weight[buffer][column];
    integers.weight[buffer][column] = weight * mine.unit;
    const bool fits = mine.fits && IntegerQuery::FitsWeight(weight, weight * mine.unit);
    fit = fit && (fits || column >= columns);
  }
  return fit;
}

// 16 dims of a head and its weight, from global memory; zeros beyond the heads. Thread i of the
// math threads has dims 16 (i % 8) .. of head i / 8.
struct QueryDims {
  uint4 first{};
  uint4 second{};
  float weight = 0;

  __device__ void Load(const IndexScoresArgs& args, int token) {
    constexpr int kSteps = IndexDims::kDims / 16;
    const int column = threadIdx.x / kSteps;
    if (column >= args.num_heads) return;
    const int64_t row = token * args.num_heads + column;
    const auto* const dims = reinterpret_cast<const uint4*>(args.q + row * IndexDims::kDims);
    first = dims[threadIdx.x % kSteps * 2];
    second = dims[threadIdx.x % kSteps * 2 + 1];
    weight = args.weight[row];
  }
};

// The same into a buffer, in the order of widened keys, and as integers if wanted: returns whether
// this thread's are. By all math threads; the caller synchronises. Half the latency of a copy that
// another warp starts.
template <typename Tile>
__device__ bool StoreQuery(QueryDims dims, bool wants_integers, int buffer,
                           IndexScoresShared<Tile>& shared) {
  constexpr int kSteps = IndexDims::kDims / 16;
  static_assert(Tile::kMathThreads == Tile::kColumns * kSteps);
  const int column = threadIdx.x / kSteps;
  const int step = threadIdx.x % kSteps;
  bool fits = false;
  if (wants_integers) {
    const IntegerQuery mine(dims.first, dims.second);
    mine.Store(shared.integers.query[Tile::kOneQuery ? 0 : buffer], column, step);
    const float scaled = dims.weight * mine.unit;
    shared.integers.weight[buffer][column] = scaled;
    fits = mine.fits && IntegerQuery::FitsWeight(dims.weight, scaled);
  }
  ArrangeDims<Tile::kFormat>(dims.first, dims.second);
  uint8_t* const row = shared.query[buffer] + step / 4 * Tile::kQueryHalfBytes + column * 128;
  const int unit = (step % 4 * 2) ^ (column % 8);
  *reinterpret_cast<uint4*>(row + unit * 16) = dims.first;
  *reinterpret_cast<uint4*>(row + (unit ^ 1) * 16) = dims.second;
  shared.weight[buffer][column] = dims.weight;
  return fits;
}

// Weights of this thread's columns of one token: heads 8 i + 2 (t % 4) + {0, 1}.
__device__ inline void LoadWeights(const float* weight, float2 (&mine)[IndexDims::kHeads / 8]) {
#pragma unroll
  for (int i = 0; i < IndexDims::kHeads / 8; ++i) {
    mine[i] = *reinterpret_cast<const float2*>(weight + 8 * i + threadIdx.x % 4 * 2);
  }
}

// w relu(x) = w (x + |x|) / 2 exactly, and both operations run at full rate, unlike a maximum.
__device__ inline float PositivePart(float x) { return x + fabsf(x); }

// The score of row r (threads 0, 2 of a quad) or r + 8 (1, 3) of one token, whose accumulators
// start at acc[kFirst], times what PositivePart multiplies by. Without kAllHeads, columns beyond
// the heads hold another token's queries.
template <bool kAllHeads, int kFirst, typename T, int kSize>
__device__ float SumHeads(const T (&acc)[kSize], const float2 (&weight)[IndexDims::kHeads / 8],
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
      sums[0] = fmaf(w, PositivePart(acc[at]), sums[0]);
      sums[1] = fmaf(w, PositivePart(acc[at + 2]), sums[1]);
    }
  }
  const float other = __shfl_xor_sync(~0u, thread % 2 == 0 ? sums[1] : sums[0], 1);
  const float sum = (thread % 2 == 0 ? sums[0] : sums[1]) + other;
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

}  // namespace lodestone::cuda

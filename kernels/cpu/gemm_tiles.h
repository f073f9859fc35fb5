#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_table.h"

// What the matrix products share: register tiles, and rows in and out of them. Only for *_simd.cc.
//
// Lanes are outputs: every output is one lane of one accumulator, and its terms are added in
// ascending k. So the tile shapes below are free to differ by instruction set and by number of
// rows: no result depends on them.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

using cpu::GemmArgs;
using cpu::kPanelOutputs;

constexpr int64_t kRowChunk = 96;   // rows that share widened weights
constexpr int64_t kPanelChunk = 8;  // panels that share widened rows
constexpr int64_t kBlockK = 256;    // terms between two visits of the sums in memory
// Strides are odd numbers of cache lines, so that rows spread over the sets of the cache.
constexpr int64_t kXStride = kBlockK + 16;
constexpr int64_t kSumStride = kPanelChunk * kPanelOutputs + 16;

#if defined(__AVX512F__)
constexpr int kMaxTileRows = 12;
constexpr int kTileVectors = 2;              // vectors of 16 outputs in a tile with many rows
constexpr int kFewRowVectors[] = {8, 4, 4};  // with 1, 2, 3 rows: enough chains to hide latency
#else
constexpr int kMaxTileRows = 6;
constexpr int kTileVectors = 1;
constexpr int kFewRowVectors[] = {4, 2, 1};
#endif

constexpr int TileVectors(int rows) { return rows <= 3 ? kFewRowVectors[rows - 1] : kTileVectors; }

struct GemmScratch {
  alignas(64) float x[kRowChunk * kXStride];
  alignas(64) float sums[kRowChunk * kSumStride];
  alignas(64) float weights[kBlockK * kPanelOutputs];
};

// Sixteen weights of input `k`: outputs 16 * half .. of the panel.
LODESTONE_SIMD F32x16 LoadWeights(const uint16_t* panel, int64_t k, int64_t half) {
  return LoadBf16(panel + k * kPanelOutputs + half * kLanes);
}
LODESTONE_SIMD F32x16 LoadWeights(const float* panel, int64_t k, int64_t half) {
  return Load(panel + k * kPanelOutputs + half * kLanes);
}

// x[r, 0..num_k) . w for kRows rows and kVectors vectors of outputs; two vectors make a panel,
// panels are `panel_stride` elements apart. The first vector is half `half` of its panel (0 if
// kVectors is more than 1). Without scales the sums continue those in memory; with scales [output]
// this is a slice: it starts at zero, and the result times the scale is added to them.
template <int kRows, int kVectors, bool kScaled, typename W>
void Tile(const float* x, const W* w, int64_t panel_stride, int64_t half, int64_t num_k, bool first,
          const float* scales, float* sums) {
  F32x16 acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = first || kScaled ? Zero() : Load(sums + r * kSumStride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < num_k; ++k) {
    F32x16 weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = LoadWeights(w + (v / 2) * panel_stride, k, kVectors == 1 ? half : v % 2);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32x16 value = Broadcast(x[r * kXStride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Fma(value, weights[v], acc[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* sum = sums + r * kSumStride + v * kLanes;
      if constexpr (kScaled) {
        const F32x16 before = first ? Zero() : Load(sum);
        Store(sum, Fma(acc[r][v], Load(scales + v * kLanes), before));
      } else {
        Store(sum, acc[r][v]);
      }
    }
  }
}

// A row of tiles over `num_vectors` vectors of outputs.
template <int kRows, bool kScaled, typename W>
void TileRow(const float* x, const W* w, int64_t panel_stride, int64_t num_k, bool first,
             int64_t num_vectors, const float* scales, float* sums) {
  constexpr int kWide = TileVectors(kRows);
  constexpr int kNarrow = kWide < 2 ? 1 : 2;
  int64_t v = 0;
  for (; v + kWide <= num_vectors; v += kWide) {
    Tile<kRows, kWide, kScaled>(x, w + (v / 2) * panel_stride, panel_stride, v % 2, num_k, first,
                                scales + v * kLanes, sums + v * kLanes);
  }
  for (; v < num_vectors; v += kNarrow) {
    Tile<kRows, kNarrow, kScaled>(x, w + (v / 2) * panel_stride, panel_stride, v % 2, num_k, first,
                                  scales + v * kLanes, sums + v * kLanes);
  }
}

template <typename W>
using TileRowFunction = void (*)(const float*, const W*, int64_t, int64_t, bool, int64_t,
                                 const float*, float*);

template <bool kScaled, typename W>
TileRowFunction<W> TileRowFor(int64_t rows) {
  switch (rows) {
    case 1:
      return TileRow<1, kScaled, W>;
    case 2:
      return TileRow<2, kScaled, W>;
    case 3:
      return TileRow<3, kScaled, W>;
    case 4:
      return TileRow<4, kScaled, W>;
    case 5:
      return TileRow<5, kScaled, W>;
    case 6:
      return TileRow<6, kScaled, W>;
#if defined(__AVX512F__)
    case 7:
      return TileRow<7, kScaled, W>;
    case 8:
      return TileRow<8, kScaled, W>;
    case 9:
      return TileRow<9, kScaled, W>;
    case 10:
      return TileRow<10, kScaled, W>;
    case 11:
      return TileRow<11, kScaled, W>;
    case 12:
      return TileRow<12, kScaled, W>;
#endif
    default:
      return nullptr;
  }
}

// All rows of the chunk, in blocks of nearly equal height.
template <bool kScaled, typename W>
void AllRows(const float* x, int64_t num_rows, const W* w, int64_t panel_stride, int64_t num_k,
             bool first, int64_t num_vectors, const float* scales, float* sums) {
  const int64_t num_blocks = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t row = 0;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t height = (num_rows - row + num_blocks - block - 1) / (num_blocks - block);
    TileRowFor<kScaled, W>(height)(x + row * kXStride, w, panel_stride, num_k, first, num_vectors,
                                   scales, sums + row * kSumStride);
    row += height;
  }
}

template <bool kBf16>
void WidenTo(const void* x, int64_t first, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadAct<kBf16>(x, first + i));
  if (i == n) return;
  if constexpr (kBf16) {
    Store(out + i, LoadBf16Part(static_cast<const uint16_t*>(x) + first + i, n - i));
  } else {
    Store(out + i, LoadPart(static_cast<const float*>(x) + first + i, n - i));
  }
}

LODESTONE_SIMD void WidenRows(const GemmArgs& args, int64_t first_row, int64_t num_rows,
                              int64_t first_k, int64_t num_k, float* out) {
  const int64_t row_bytes = args.x_stride * (args.x_bf16 ? 2 : 4);
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = args.rows != nullptr ? args.rows[first_row + r] : first_row + r;
    const void* x = static_cast<const char*>(args.x) + row * row_bytes;
    if (args.x_bf16)
      WidenTo<true>(x, first_k, num_k, out + r * kXStride);
    else
      WidenTo<false>(x, first_k, num_k, out + r * kXStride);
  }
}

template <bool kBf16>
void StoreRow(const float* sums, int64_t n, void* out, int64_t first) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreAct<kBf16>(out, first + i, Load(sums + i));
  if (i == n) return;
  if constexpr (kBf16)
    StoreBf16Part(static_cast<uint16_t*>(out) + first + i, Load(sums + i), n - i);
  else
    StorePart(static_cast<float*>(out) + first + i, Load(sums + i), n - i);
}

LODESTONE_SIMD void StoreRows(const GemmArgs& args, int64_t first_row, int64_t num_rows,
                              int64_t first_output, int64_t num_outputs, const float* sums) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (first_row + r) * args.out_stride + first_output;
    if (args.out_bf16)
      StoreRow<true>(sums + r * kSumStride, num_outputs, args.out, at);
    else
      StoreRow<false>(sums + r * kSumStride, num_outputs, args.out, at);
  }
}

LODESTONE_SIMD int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// Runs a product chunk by chunk: add_terms(rows, first panel, panels, first k, count of k, scratch)
// adds terms to the sums, with the rows widened in scratch.
template <typename Scratch, typename AddTerms>
void RunChunks(const GemmArgs& args, Scratch& scratch, const AddTerms& add_terms) {
  const int64_t num_panels = (args.n + kPanelOutputs - 1) / kPanelOutputs;
  for (int64_t row = 0; row < args.num_rows; row += kRowChunk) {
    const int64_t rows = Least(kRowChunk, args.num_rows - row);
    for (int64_t panel = 0; panel < num_panels; panel += kPanelChunk) {
      const int64_t panels = Least(kPanelChunk, num_panels - panel);
      for (int64_t k = 0; k < args.k; k += kBlockK) {
        const int64_t num_k = Least(kBlockK, args.k - k);
        WidenRows(args, row, rows, k, num_k, scratch.x);
        add_terms(rows, panel, panels, k, num_k);
      }
      const int64_t output = panel * kPanelOutputs;
      StoreRows(args, row, rows, output, Least(panels * kPanelOutputs, args.n - output),
                scratch.sums);
    }
  }
}

}  // namespace
}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

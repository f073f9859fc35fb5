#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

// Matrix products with lanes over outputs: every output is one lane of one accumulator, and its
// terms are added in ascending k. So the tile shapes below are free to differ by instruction set
// and by number of rows: no result depends on them.
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

struct Scratch {
  alignas(64) float x[kRowChunk * kXStride];
  alignas(64) float sums[kRowChunk * kSumStride];
  alignas(64) float weights[kBlockK * kPanelOutputs];
};

template <typename W>
LODESTONE_SIMD F32x16 LoadWeights(const W* p) {
  if constexpr (sizeof(W) == 2)
    return LoadBf16(p);
  else
    return Load(p);
}

// sums[r, v] += x[r, 0..num_k) . w for kRows rows and kVectors vectors of outputs; two vectors make
// a panel, panels are `panel_stride` elements apart.
template <int kRows, int kVectors, typename W>
void Tile(const float* x, const W* w, int64_t panel_stride, int64_t num_k, bool first,
          float* sums) {
  F32x16 acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = first ? Zero() : Load(sums + r * kSumStride + v * kLanes);
    }
  }
  for (int64_t k = 0; k < num_k; ++k) {
    F32x16 weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = LoadWeights(w + (v / 2) * panel_stride + k * kPanelOutputs + (v % 2) * kLanes);
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
    for (int v = 0; v < kVectors; ++v) Store(sums + r * kSumStride + v * kLanes, acc[r][v]);
  }
}

// A row of tiles over `num_vectors` vectors of outputs.
template <int kRows, typename W>
void TileRow(const float* x, const W* w, int64_t panel_stride, int64_t num_k, bool first,
             int64_t num_vectors, float* sums) {
  constexpr int kWide = TileVectors(kRows);
  constexpr int kNarrow = kWide < 2 ? 1 : 2;
  int64_t v = 0;
  const auto weights_at = [&](int64_t vector) {
    return w + (vector / 2) * panel_stride + (vector % 2) * kLanes;
  };
  for (; v + kWide <= num_vectors; v += kWide) {
    Tile<kRows, kWide>(x, weights_at(v), panel_stride, num_k, first, sums + v * kLanes);
  }
  for (; v < num_vectors; v += kNarrow) {
    Tile<kRows, kNarrow>(x, weights_at(v), panel_stride, num_k, first, sums + v * kLanes);
  }
}

template <typename W>
using TileRowFunction = void (*)(const float*, const W*, int64_t, int64_t, bool, int64_t, float*);

template <typename W>
TileRowFunction<W> TileRowFor(int64_t rows) {
  switch (rows) {
    case 1:
      return TileRow<1, W>;
    case 2:
      return TileRow<2, W>;
    case 3:
      return TileRow<3, W>;
    case 4:
      return TileRow<4, W>;
    case 5:
      return TileRow<5, W>;
    case 6:
      return TileRow<6, W>;
#if defined(__AVX512F__)
    case 7:
      return TileRow<7, W>;
    case 8:
      return TileRow<8, W>;
    case 9:
      return TileRow<9, W>;
    case 10:
      return TileRow<10, W>;
    case 11:
      return TileRow<11, W>;
    case 12:
      return TileRow<12, W>;
#endif
    default:
      return nullptr;
  }
}

// All rows of the chunk, in blocks of nearly equal height.
template <typename W>
void AllRows(const float* x, int64_t num_rows, const W* w, int64_t panel_stride, int64_t num_k,
             bool first, int64_t num_vectors, float* sums) {
  const int64_t num_blocks = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t row = 0;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t height = (num_rows - row + num_blocks - block - 1) / (num_blocks - block);
    TileRowFor<W>(height)(x + row * kXStride, w, panel_stride, num_k, first, num_vectors,
                          sums + row * kSumStride);
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

void WidenRows(const GemmArgs& args, int64_t first_row, int64_t num_rows, int64_t first_k,
               int64_t num_k, float* out) {
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

void StoreRows(const GemmArgs& args, int64_t first_row, int64_t num_rows, int64_t first_output,
               int64_t num_outputs, const float* sums) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (first_row + r) * args.out_stride + first_output;
    if (args.out_bf16)
      StoreRow<true>(sums + r * kSumStride, num_outputs, args.out, at);
    else
      StoreRow<false>(sums + r * kSumStride, num_outputs, args.out, at);
  }
}

// Terms [first_k, first_k + num_k) of a chunk of rows and panels. With more rows than one tile has,
// bf16 weights are widened once for all of them.
template <typename W>
void AddTerms(const GemmArgs& args, int64_t num_rows, int64_t first_panel, int64_t num_panels,
              int64_t first_k, int64_t num_k, Scratch& scratch) {
  const int64_t panel_stride = args.k * kPanelOutputs;
  const W* w =
      static_cast<const W*>(args.panels) + first_panel * panel_stride + first_k * kPanelOutputs;
  const bool first = first_k == 0;
  if (sizeof(W) == 4 || num_rows <= kMaxTileRows) {
    AllRows<W>(scratch.x, num_rows, w, panel_stride, num_k, first, num_panels * 2, scratch.sums);
    return;
  }
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    const W* source = w + panel * panel_stride;
    for (int64_t i = 0; i < num_k * kPanelOutputs; i += kLanes) {
      Store(scratch.weights + i, LoadWeights(source + i));
    }
    AllRows<float>(scratch.x, num_rows, scratch.weights, 0, num_k, first, 2,
                   scratch.sums + panel * kPanelOutputs);
  }
}

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

void Gemm(const GemmArgs& args) {
  Scratch scratch;
  const int64_t num_panels = (args.n + kPanelOutputs - 1) / kPanelOutputs;
  for (int64_t row = 0; row < args.num_rows; row += kRowChunk) {
    const int64_t rows = Least(kRowChunk, args.num_rows - row);
    for (int64_t panel = 0; panel < num_panels; panel += kPanelChunk) {
      const int64_t panels = Least(kPanelChunk, num_panels - panel);
      for (int64_t k = 0; k < args.k; k += kBlockK) {
        const int64_t num_k = Least(kBlockK, args.k - k);
        WidenRows(args, row, rows, k, num_k, scratch.x);
        if (args.w_bf16)
          AddTerms<uint16_t>(args, rows, panel, panels, k, num_k, scratch);
        else
          AddTerms<float>(args, rows, panel, panels, k, num_k, scratch);
      }
      const int64_t output = panel * kPanelOutputs;
      StoreRows(args, row, rows, output, Least(panels * kPanelOutputs, args.n - output),
                scratch.sums);
    }
  }
}

float FmaLoop(int64_t iterations) {
#if defined(__AVX512F__)
  constexpr int kChains = 16;
#else
  constexpr int kChains = 6;  // more would not stay in registers
#endif
  F32x16 acc[kChains];
  const F32x16 a = Broadcast(0.999f);
  const F32x16 b = Broadcast(0.001f);
  alignas(64) float start[kLanes];  // all different: equal halves would be computed once
  for (int i = 0; i < kLanes; ++i) start[i] = static_cast<float>(iterations % 100 * i);
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) acc[i] = Add(Load(start), Broadcast(static_cast<float>(i)));
  for (int64_t n = 0; n < iterations * 16 / kChains; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = Fma(acc[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) acc[0] = Add(acc[0], acc[i]);
  return ReduceAdd(acc[0]);
}

float ReadLoop(const float* data, int64_t n) {
  F32x16 acc[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t i = 0; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[j] = Add(acc[j], Load(data + i + j * kLanes));
  }
  return ReduceAdd(Add(Add(acc[0], acc[1]), Add(acc[2], acc[3])));
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

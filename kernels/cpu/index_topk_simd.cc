#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_functions.h"

namespace lodestone::LODESTONE_SIMD_NAMESPACE {
namespace {

using cpu::Candidates;
using cpu::KeyCode;
using cpu::KeyPanelArgs;
using cpu::kKeyPanel;
using cpu::ScoreArgs;

LODESTONE_SIMD float E8m0(uint8_t code) {
  if (code == 255) return _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32(0x7fc00000)));
  const int32_t bits = code == 0 ? 0x00400000 : static_cast<int32_t>(code) << 23;
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32(bits)));
}

// e4m3: exponent and mantissa put in place of fp32's, then the bias corrected by an exact product.
LODESTONE_SIMD __m256 WidenE4m3(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, magnitude), 24);
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                     _mm256_set1_ps(0x1p120f));
  const __m256 is_nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_or_ps(_mm256_blendv_ps(value, nan, is_nan), _mm256_castsi256_ps(sign));
}

// Eight e2m1 codes from four bytes, low nibble first.
LODESTONE_SIMD __m256 WidenE2m1(const uint8_t* p) {
  const int32_t packed = static_cast<int32_t>(p[0] | p[1] << 8 | p[2] << 16) |
                         static_cast<int32_t>(static_cast<uint32_t>(p[3]) << 24);
  const __m256i code =
      _mm256_srlv_epi32(_mm256_set1_epi32(packed), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 magnitude = _mm256_permutevar8x32_ps(table, code);  // uses the low three bits
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}

// Dims [first, first + 8) of one row.
template <KeyCode kCode>
LODESTONE_SIMD __m256 LoadKey(const uint8_t* payload, const uint8_t* scale, int64_t first) {
  if constexpr (kCode == KeyCode::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(payload) + first);
  } else if constexpr (kCode == KeyCode::kBf16) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(payload + first * 2));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  } else if constexpr (kCode == KeyCode::kE4m3) {
    return WidenE4m3(payload + first);
  } else {
    return _mm256_mul_ps(WidenE2m1(payload + first / 2), _mm256_set1_ps(E8m0(scale[first / 32])));
  }
}

LODESTONE_SIMD void Transpose8x8(__m256* rows) {
  __m256 a[8];
  __m256 b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

template <KeyCode kCode>
void LoadPanel(const KeyPanelArgs& args) {
  for (int64_t entry = 0; entry < kKeyPanel; entry += 8) {
    const uint8_t* payload[8];
    const uint8_t* scale[8];
    for (int i = 0; i < 8; ++i) {
      const int64_t row = entry + i < args.count ? entry + i : args.count - 1;
      payload[i] = static_cast<const uint8_t*>(args.payload) + row * args.payload_bytes;
      scale[i] = static_cast<const uint8_t*>(args.scale) + row * args.scale_bytes;
    }
    for (int64_t dim = 0; dim < args.dim; dim += 8) {
      __m256 rows[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) rows[i] = LoadKey<kCode>(payload[i], scale[i], dim);
      Transpose8x8(rows);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        _mm256_storeu_ps(args.panel + (dim + i) * kKeyPanel + entry, rows[i]);
      }
    }
    for (int i = 0; i < 8; ++i) {
      float factor = 1.0f;
      if constexpr (kCode == KeyCode::kE4m3) __builtin_memcpy(&factor, scale[i], 4);
      args.factor[entry + i] = factor;
    }
  }
}

#if defined(__AVX512F__)
constexpr int kHeadTile = 8;
constexpr int kVectorTile = 2;
#else
constexpr int kHeadTile = 4;
constexpr int kVectorTile = 1;
#endif

// score[v] += weight[h] * relu(dot(q[h], key)), h ascending, for kHeads heads.
template <int kHeads>
LODESTONE_SIMD void AddHeads(const float* q, const float* weight, int64_t dim, const float* panel,
                             F32x16* score) {
  F32x16 dot[kHeads][kVectorTile];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectorTile; ++v) dot[h][v] = Zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    F32x16 key[kVectorTile];
#pragma GCC unroll 2
    for (int v = 0; v < kVectorTile; ++v) key[v] = Load(panel + d * kKeyPanel + v * kLanes);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 value = Broadcast(q[h * dim + d]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectorTile; ++v) dot[h][v] = Fma(value, key[v], dot[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectorTile; ++v) {
      score[v] = Fma(Broadcast(weight[h]), Max(Zero(), dot[h][v]), score[v]);
    }
  }
}

// Scores of kVectorTile * 16 entries of one token.
LODESTONE_SIMD void ScoreEntries(const float* q, const float* weight, int64_t heads, int64_t dim,
                                 const float* panel, F32x16* score) {
  for (int v = 0; v < kVectorTile; ++v) score[v] = Zero();
  int64_t h = 0;
  for (; h + kHeadTile <= heads; h += kHeadTile) {
    AddHeads<kHeadTile>(q + h * dim, weight + h, dim, panel, score);
  }
  for (; h < heads; ++h) AddHeads<1>(q + h * dim, weight + h, dim, panel, score);
}

// Maps fp32 order to int32 order: NaN lowest, both zeros equal.
LODESTONE_SIMD I32x16 OrderOf(F32x16 score) {
  const I32x16 bits = Bits(Add(score, Zero()));
  const I32x16 flip = ShiftRight<1>(ShiftRightSigned<31>(bits));
  return SelectNan(score, BroadcastInt(INT32_MIN), Xor(bits, flip));
}

// Offers 16 entries from `first` to the list; only bits set in `mask` are visible.
LODESTONE_SIMD void Offer(const ScoreArgs& args, I32x16 order, int64_t first, uint32_t mask,
                          Candidates& list) {
  if (list.full) mask &= GreaterMask(order, BroadcastInt(list.threshold));
  if (mask == 0) return;
  alignas(64) int32_t lanes[kLanes];
  StoreInt(lanes, order);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    const uint64_t rank = static_cast<uint32_t>(lanes[lane]) ^ 0x80000000u;
    const uint32_t entry = static_cast<uint32_t>(first + lane);
    list.items[list.count++] = rank << 32 | static_cast<uint32_t>(~entry);
  }
  if (list.count + kKeyPanel > args.capacity) args.prune(&list, args.keep);
}

}  // namespace

void LoadKeyPanel(const KeyPanelArgs& args) {
  switch (args.code) {
    case KeyCode::kBf16:
      return LoadPanel<KeyCode::kBf16>(args);
    case KeyCode::kF32:
      return LoadPanel<KeyCode::kF32>(args);
    case KeyCode::kE4m3:
      return LoadPanel<KeyCode::kE4m3>(args);
    case KeyCode::kE2m1:
      return LoadPanel<KeyCode::kE2m1>(args);
  }
}

void ScorePanel(const ScoreArgs& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const float* q = args.q + token * args.heads * args.dim;
    const float* weight = args.weight + token * args.heads;
    for (int64_t entry = 0; entry < kKeyPanel; entry += kVectorTile * kLanes) {
      if (args.first_entry + entry >= args.visible[token]) break;
      F32x16 score[kVectorTile];
      ScoreEntries(q, weight, args.heads, args.dim, args.panel + entry, score);
      for (int v = 0; v < kVectorTile; ++v) {
        const int64_t first = entry + v * kLanes;
        const int64_t left = args.visible[token] - args.first_entry - first;
        if (left <= 0) break;
        const F32x16 scaled = Mul(score[v], Load(args.factor + first));
        if (args.scores != nullptr) {
          float* out = args.scores + token * args.scores_stride + args.first_entry + first;
          if (left >= kLanes)
            Store(out, scaled);
          else
            StorePart(out, scaled, left);
        }
        if (args.candidates != nullptr) {
          const uint32_t mask = left >= kLanes ? 0xffffu : (1u << left) - 1;
          Offer(args, OrderOf(scaled), args.first_entry + first, mask, args.candidates[token]);
        }
      }
    }
  }
}

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE

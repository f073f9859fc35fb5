#pragma once

#include <cstdint>

#include "runtime/weight_format.h"

// The arithmetic of the CPU ops, once per instruction set (*_simd.cc), behind plain pointers. The
// files of this folder that are compiled once split an op into tasks, find the rows and call these.
// `bf16` says whether an activation row is bf16 or fp32. Functions use no memory but their stack
// (at most 256 KiB) and their arguments, and are thread-safe. Rows need no alignment.
namespace lodestone::cpu {

inline constexpr int64_t kPanelOutputs = 32;  // outputs of one weight panel
inline constexpr int64_t kKeyPanel = 32;      // entries of one index-key panel
inline constexpr int64_t kHeadBlock = 4;      // heads that attend together
inline constexpr int64_t kKeyBlock = 4;       // keys that are scored together
inline constexpr int64_t kMaxStreams = 8;     // residual streams M
inline constexpr int64_t kMaxPooledTokens = 128;

// Bytes of one slice of a panel of quantised weights: 32 scale bytes, one for each output, then the
// codes of ScaledInputs inputs: kFp8 [input][32]; kFp4 [input][16], byte i holds output i (low
// nibble) and output 16 + i. Outputs and inputs beyond the matrix are zeros.
constexpr int64_t PanelSliceBytes(WeightFormat format) {
  return kPanelOutputs +
         ScaledInputs(format) * kPanelOutputs / (format == WeightFormat::kFp4 ? 2 : 1);
}
// Bytes of one panel with k inputs. kBf16 and kF32: [k][32]; quantised: slices one after another.
constexpr int64_t PanelBytes(WeightFormat format, int64_t k) {
  if (IsQuantised(format)) return ScaleColumns(format, k) * PanelSliceBytes(format);
  return k * kPanelOutputs * BytesPerElement(ValueType(format));
}

// out[r, i] = sum_j x[rows[r], j] * weight[i, j], in the order that LinearParams says.
// Weight panels: [ceil(n / 32)], outputs beyond n are zero.
struct GemmArgs {
  const void* x = nullptr;
  bool x_bf16 = false;
  int64_t x_stride = 0;           // elements
  const int32_t* rows = nullptr;  // row numbers of x; null: 0, 1, ..
  int64_t num_rows = 0;
  const void* panels = nullptr;
  WeightFormat format = WeightFormat::kBf16;
  bool round_x = false;  // Q8 of x in groups of 128; quantised weights only
  int64_t n = 0;
  int64_t k = 0;
  void* out = nullptr;
  bool out_bf16 = false;
  int64_t out_stride = 0;  // elements
};

// HcPreParams per token; see there. `mix` holds fn z, not yet scaled by rsqrt(mean(z^2) + eps).
struct HcMixArgs {
  const float* mix = nullptr;  // [num_tokens, mix_stride]
  int64_t mix_stride = 0;
  const float* factor = nullptr;  // [num_tokens]  the rsqrt
  int64_t num_tokens = 0;         // <= 16
  int64_t num_streams = 0;        // M
  const float* base = nullptr;
  const float* scale = nullptr;
  float eps = 0;
  int sinkhorn_iters = 0;
  float* pre = nullptr;   // [num_tokens, M]
  float* post = nullptr;  // [num_tokens, M]; null: neither post nor comb (HcHead)
  float* comb = nullptr;  // [num_tokens, M, M]
};

// Softmax-weighted sum of `count` token rows per channel. A score is score[i][c] + ape[i][c], or
// score[i][c] where ape[i] is null.
struct PoolArgs {
  int64_t count = 0;  // <= kMaxPooledTokens
  const float* kv[kMaxPooledTokens] = {};
  const float* score[kMaxPooledTokens] = {};
  const float* ape[kMaxPooledTokens] = {};
  int64_t num_channels = 0;
  float* out = nullptr;
};

enum class KeyCode : uint8_t { kBf16, kF32, kE4m3, kE2m1 };

// Rows of index keys, made into a panel [dim][32] of fp32. Rows beyond `count` repeat the last one.
struct KeyPanelArgs {
  KeyCode code = KeyCode::kBf16;
  const void* payload = nullptr;
  const void* scale = nullptr;
  int64_t payload_bytes = 0;  // of a row
  int64_t scale_bytes = 0;
  int64_t count = 0;  // 1 .. 32
  int64_t dim = 0;    // multiple of 32
  float* panel = nullptr;
  float* factor = nullptr;  // [32]  multiplies a finished score
};

// Candidates of one token: the best seen so far, in any order. A candidate is
// (score mapped to an ordered int32, offset to unsigned) << 32 | ~entry: larger is better.
struct Candidates {
  uint64_t* items = nullptr;  // [capacity], capacity >= 2 * keep + kKeyPanel
  int64_t count = 0;
  int32_t threshold = INT32_MIN;  // only larger scores can enter
  bool full = false;              // `keep` or more items were seen
};

struct ScoreArgs {
  const float* q = nullptr;       // [num_tokens, heads, dim]
  const float* weight = nullptr;  // [num_tokens, heads]
  int64_t num_tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  const int32_t* visible = nullptr;  // [num_tokens]
  int64_t first_entry = 0;           // of the panel
  const float* panel = nullptr;
  const float* factor = nullptr;
  int64_t keep = 0;
  int64_t capacity = 0;
  Candidates* candidates = nullptr;  // [num_tokens]; null: not wanted
  // Keeps the best `keep` of a full list. Not in the SIMD files: it instantiates library code.
  void (*prune)(Candidates* candidates, int64_t keep) = nullptr;
  float* scores = nullptr;  // [num_tokens, scores_stride]; null: not wanted
  int64_t scores_stride = 0;
};

// Up to kHeadBlock heads of one token against all its keys.
struct AttendArgs {
  const float* q = nullptr;           // [kHeadBlock, dim]
  const void* const* keys = nullptr;  // [num_keys rounded up to kKeyBlock], rows of `dim`
  int64_t num_keys = 0;
  int64_t dim = 0;
  bool bf16 = false;  // keys, rounding of probabilities and output
  float scale = 0;
  const float* sink = nullptr;  // [num_heads]
  int64_t num_heads = 0;        // 1 .. kHeadBlock
  float* probs = nullptr;       // [kHeadBlock, probs_stride]
  int64_t probs_stride = 0;     // >= num_keys rounded up to 16
  void* out = nullptr;          // [num_heads, dim]
};

struct SimdTable {
  const char* name;
  int64_t row_block;  // rows of one GEMM register tile
  void (*gemm)(const GemmArgs& args);
  void (*gemm_quantised)(const GemmArgs& args);
  void (*widen)(const void* x, bool bf16, int64_t n, float* out);
  void (*narrow)(const float* x, int64_t n, bool bf16, void* out);
  float (*sum_squares)(const void* x, bool bf16, int64_t n);
  // out = round(weight * (x * rsqrt(mean(x^2) + eps))); may run in place.
  void (*rms_norm)(const void* x, const uint16_t* weight, float eps, int64_t n, bool bf16,
                   void* out);
  void (*query_norm)(void* x, float eps, int64_t n, bool bf16);
  // Rotates the pairs of x[0, n) in place and rounds. angles: cos of each dim, then sin of each
  // dim, the sin of even dims negated.
  void (*rotate)(void* x, const float* cos, const float* sin, int64_t n, bool bf16);
  void (*hadamard)(void* x, int64_t n, float factor, bool bf16);  // n a power of two >= 16
  // out = round(sum_m pre[m] * streams[m]); streams [M, n].
  void (*collapse_streams)(const void* streams, const float* pre, int64_t num_streams, int64_t n,
                           bool bf16, void* out);
  void (*hc_mix)(const HcMixArgs& args);
  // HcPostParams for one token.
  void (*hc_post)(const void* x, const float* post, const float* comb, int64_t num_streams,
                  int64_t n, bool bf16, void* streams);
  void (*pool)(const PoolArgs& args);
  void (*load_key_panel)(const KeyPanelArgs& args);
  void (*score_panel)(const ScoreArgs& args);
  void (*attend)(const AttendArgs& args);
  // out = round(silu(min(gate, limit)) * clamp(up, -limit, limit) * weight); gate and up are
  // rounded first.
  void (*swiglu)(const float* gate, const float* up, float limit, float weight, int64_t n,
                 bool bf16, void* out);
  // out = round(sum of the rows, in order).
  void (*add_rows)(const void* const* rows, int64_t num_rows, int64_t n, bool bf16, void* out);
  // Benchmarks: `iterations` rounds of 16 independent fused multiply-adds of 16 lanes; the sum of
  // `n` floats read in order.
  float (*fma_loop)(int64_t iterations);
  float (*read_loop)(const float* data, int64_t n);
};

}  // namespace lodestone::cpu

namespace lodestone::avx2 {
extern const cpu::SimdTable kTable;
}
namespace lodestone::avx512 {
extern const cpu::SimdTable kTable;
}

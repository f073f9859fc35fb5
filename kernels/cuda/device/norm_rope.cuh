#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/row_store.cuh"
#include "kernels/op_params.h"

// The rows of RmsNorm, QueryNormRope, WindowLatent, StoreWindow and IndexQuery: what a kernel is
// given, and one row's work by its team. A block of kRowThreads threads has one row, or kWarpRows
// rows of one warp each. `row` is shared memory for the row (of the warp).
namespace lodestone::cuda {

constexpr int kRowThreads = 128;
constexpr int kWarpRows = kRowThreads / 32;
constexpr int kMaxRowFloats = 8192;   // of a row, in shared memory: 32 KiB
constexpr int kMaxWarpFloats = 1024;  // the same, one row per warp

inline void RequireRow(const char* launcher, int64_t n, int64_t limit) {
  RequireArgument(n <= limit, launcher, "a row exceeds the shared memory it is given", n);
}

// The angle of pair `lane` of a row that one warp rotates, for pairs up to 32.
struct LaneAngle {
  float sine = 0;
  float cosine = 1;
};

__device__ inline LaneAngle FindAngle(int32_t position, const float* freqs, int num_pairs) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LaneAngle angle;
  if (lane < num_pairs) SineAndCosine(position, freqs[lane], &angle.sine, &angle.cosine);
  return angle;
}

// RotateTail of kCount neighbouring values in registers, the first of which is `before` dims into
// the rotated ones (negative: not rotated). By all lanes of a warp.
template <int kCount>
__device__ void RotateValues(const LaneAngle& angle, int before, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int pair = (before + i) / 2;
    const float sine = __shfl_sync(~0u, angle.sine, pair & 31);
    const float cosine = __shfl_sync(~0u, angle.cosine, pair & 31);
    if (before + i >= 0) RotatePair(sine, cosine, values[i], values[i + 1]);
  }
}

template <int kCount>
__device__ void LoadValues(const uint16_t* from, float (&values)[kCount]) {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t words[kCount / 2];
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
  } else {
    *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) UnpackBf16(words[i], values[2 * i], values[2 * i + 1]);
}

template <int kCount>
__device__ void StoreValues(const float (&values)[kCount], uint16_t* to) {
  uint32_t words[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) words[i] = PackBf16(values[2 * i], values[2 * i + 1]);
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(words);
  } else {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(words);
  }
}

struct RmsNormArgs {
  const uint16_t* x;
  int64_t x_stride;
  const uint16_t* weight;
  uint16_t* out;
  int64_t out_stride;
  int n;
  float eps;
};

inline RmsNormArgs ArgsOf(const RmsNormParams& p) {
  RequireRow("LaunchRmsNorm", p.x.shape[1], kMaxRowFloats);
  return {.x = p.x.as<uint16_t>(),
          .x_stride = p.x.strides[0],
          .weight = p.weight.as<uint16_t>(),
          .out = p.out.as<uint16_t>(),
          .out_stride = p.out.strides[0],
          .n = static_cast<int>(p.x.shape[1]),
          .eps = p.eps};
}

__device__ inline void NormToken(const RmsNormArgs& args, int64_t token, float* row) {
  LoadRow<kRowThreads>(args.x + token * args.x_stride, args.n, row);
  RmsNormRow<kRowThreads>(row, args.n, args.weight, args.eps);
  StoreRow<kRowThreads>(row, args.n, args.out + token * args.out_stride);
}

struct QueryNormRopeArgs {
  uint16_t* q;
  int64_t token_stride, head_stride;
  const int32_t* positions;
  const float* freqs;
  int64_t num_rows;  // T * H
  int num_heads, dims, num_pairs;
  float eps;
};

inline QueryNormRopeArgs ArgsOf(const QueryNormRopeParams& p) {
  RequireRow("LaunchQueryNormRope", p.q.shape[2], kMaxWarpFloats);
  return {.q = p.q.as<uint16_t>(),
          .token_stride = p.q.strides[0],
          .head_stride = p.q.strides[1],
          .positions = p.positions.as<int32_t>(),
          .freqs = p.freqs.as<float>(),
          .num_rows = p.q.shape[0] * p.q.shape[1],
          .num_heads = static_cast<int>(p.q.shape[1]),
          .dims = static_cast<int>(p.q.shape[2]),
          .num_pairs = static_cast<int>(p.freqs.shape[0]),
          .eps = p.eps};
}

// The per-head norm of bf16 queries, rounded after every step as the vendor's tensors are: what a
// head of n dims is multiplied by, from the sum of its squares.
__device__ inline float HeadFactor(float sum, int n, float eps) {
  const float mean = RoundToBf16(sum / static_cast<float>(n));
  return RoundToBf16(1.0f / sqrtf(RoundToBf16(mean + eps)));
}

template <int kTeam>
__device__ void NormHead(float* row, int n, float eps) {
  float sum = 0;
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) sum += RoundToBf16(row[i] * row[i]);
  const float factor = HeadFactor(TeamSum<kTeam>(sum), n, eps);
  for (int i = TeamRank<kTeam>(); i < n; i += kTeam) row[i] = RoundToBf16(row[i] * factor);
  TeamSync<kTeam>();
}

// Rows of 512 dims, as the models have, are kept in registers: chunk c of a lane is its dims
// 256 c + 8 lane on.
constexpr int kQueryDims = 512;

__device__ inline bool FitsRegisters(const QueryNormRopeArgs& args) {
  return args.dims == kQueryDims && args.num_pairs <= 32 && args.num_pairs % 4 == 0 &&
         args.head_stride % 8 == 0 && args.token_stride % 8 == 0;
}

__device__ inline void NormAndRotateInRegisters(const QueryNormRopeArgs& args, uint16_t* q,
                                                int32_t position) {
  constexpr int kChunks = kQueryDims / 256;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float values[kChunks][8];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) LoadValues(q + 256 * c + 8 * lane, values[c]);
  const LaneAngle angle = FindAngle(position, args.freqs, args.num_pairs);
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (const float value : values[c]) sum += RoundToBf16(value * value);
  }
  const float factor = HeadFactor(WarpSum(sum), kQueryDims, args.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (float& value : values[c]) value = RoundToBf16(value * factor);
    RotateValues(angle, 256 * c + 8 * lane - (kQueryDims - 2 * args.num_pairs), values[c]);
    StoreValues(values[c], q + 256 * c + 8 * lane);
  }
}

// Head `index` of all tokens', by one warp.
__device__ inline void NormAndRotateHead(const QueryNormRopeArgs& args, int64_t index, float* row) {
  const int64_t token = index / args.num_heads;
  uint16_t* const q =
      args.q + token * args.token_stride + index % args.num_heads * args.head_stride;
  if (FitsRegisters(args)) return NormAndRotateInRegisters(args, q, args.positions[token]);
  LoadRow<32>(q, args.dims, row);
  NormHead<32>(row, args.dims, args.eps);
  RotateTail<32>(row, args.dims, args.num_pairs, args.positions[token], args.freqs);
  StoreRow<32>(row, args.dims, q);
}

struct WindowLatentArgs {
  const uint16_t* kv;
  int64_t kv_stride;
  const uint16_t* weight;
  const int32_t* positions;
  const float* freqs;
  uint16_t* latents;
  int64_t latents_stride;
  int dims, num_pairs;
  float eps;
  bool round_fp8;
};

inline WindowLatentArgs ArgsOf(const WindowLatentParams& p) {
  RequireRow("LaunchWindowLatent", p.kv.shape[1], kMaxRowFloats);
  return {.kv = p.kv.as<uint16_t>(),
          .kv_stride = p.kv.strides[0],
          .weight = p.weight.as<uint16_t>(),
          .positions = p.positions.as<int32_t>(),
          .freqs = p.freqs.as<float>(),
          .latents = p.latents.as<uint16_t>(),
          .latents_stride = p.latents.strides[0],
          .dims = static_cast<int>(p.kv.shape[1]),
          .num_pairs = static_cast<int>(p.freqs.shape[0]),
          .eps = p.eps,
          .round_fp8 = p.round_fp8};
}

// The latent is left in `row`.
__device__ inline void MakeLatent(const WindowLatentArgs& args, int64_t token, float* row) {
  LoadRow<kRowThreads>(args.kv + token * args.kv_stride, args.dims, row);
  RmsNormRow<kRowThreads>(row, args.dims, args.weight, args.eps);
  RotateTail<kRowThreads>(row, args.dims, args.num_pairs, args.positions[token], args.freqs);
  if (args.round_fp8) RoundFp8Groups<kRowThreads>(row, args.dims - 2 * args.num_pairs);
  StoreRow<kRowThreads>(row, args.dims, args.latents + token * args.latents_stride);
}

struct StoreWindowArgs {
  const uint16_t* latents;
  int64_t latents_stride;
  BatchPointers batch;
  WritableRows ring;
  int dims, rope_dims, window;
  KvFormat format;
};

inline StoreWindowArgs ArgsOf(const StoreWindowParams& p) {
  RequireRow("LaunchStoreWindow", p.latents.shape[1], kMaxRowFloats);
  return {.latents = p.latents.as<uint16_t>(),
          .latents_stride = p.latents.strides[0],
          .batch = PointersOf(p.batch),
          .ring = WritableRowsOf(p.ring),
          .dims = static_cast<int>(p.latents.shape[1]),
          .rope_dims = static_cast<int>(p.rope_dims),
          .window = static_cast<int>(p.ring.payload.shape[1]),
          .format = p.format};
}

// Whether the token has a ring row of its own.
__device__ inline bool IsStored(const StoreWindowArgs& args, int token) {
  const int seq = args.batch.token_seq[token];
  const int end = args.batch.seq_first[seq] + args.batch.seq_tokens[seq];
  if (token < end - args.window) return false;  // a later token has the same ring row
  return token < end;                           // else it fills the batch up
}

// The latent in `row` to its ring row. REQUIRES: IsStored.
__device__ inline void StoreLatent(const StoreWindowArgs& args, int64_t token, const float* row) {
  const int64_t slot = args.batch.seq_slot[args.batch.token_seq[token]];
  const int64_t place = args.batch.positions[token] % args.window;
  StoreLatentRow<kRowThreads>(args.format, row, args.dims, args.rope_dims,
                              args.ring.Payload(slot, place), args.ring.Scale(slot, place));
}

struct IndexQueryArgs {
  uint16_t* q;
  int64_t token_stride, head_stride;
  const uint16_t* raw_weight;
  int64_t raw_stride;
  const int32_t* positions;
  const float* freqs;
  float* weight;
  int64_t weight_stride;
  int64_t num_rows;  // T * H_i
  int num_heads, dims, num_pairs;
  float hadamard_factor;  // d_i^-1/2
  float weight_factor;    // (d_i * H_i)^-1/2
  IndexRounding rounding;
};

// By `rounding`, in place; the scale of the head under kFp8, else 1.
__device__ inline float RoundQuery(IndexRounding rounding, float* row, int n) {
  if (rounding == IndexRounding::kFp4) RoundFp4Groups<32>(row, n);
  if (rounding != IndexRounding::kFp8) return 1.0f;
  const float scale =
      QuantizeFp8Row<32>(row, n, [row](int i, uint8_t code) { row[i] = E4m3ToFloat(code); });
  __syncwarp();
  return scale;
}

inline IndexQueryArgs ArgsOf(const IndexQueryParams& p) {
  RequireRow("LaunchIndexQuery", p.q.shape[2], kMaxWarpFloats);
  const auto heads = static_cast<double>(p.q.shape[1]);
  const auto dims = static_cast<double>(p.q.shape[2]);
  return {.q = p.q.as<uint16_t>(),
          .token_stride = p.q.strides[0],
          .head_stride = p.q.strides[1],
          .raw_weight = p.raw_weight.as<uint16_t>(),
          .raw_stride = p.raw_weight.strides[0],
          .positions = p.positions.as<int32_t>(),
          .freqs = p.freqs.as<float>(),
          .weight = p.weight.as<float>(),
          .weight_stride = p.weight.strides[0],
          .num_rows = p.q.shape[0] * p.q.shape[1],
          .num_heads = static_cast<int>(p.q.shape[1]),
          .dims = static_cast<int>(p.q.shape[2]),
          .num_pairs = static_cast<int>(p.freqs.shape[0]),
          .hadamard_factor = static_cast<float>(1.0 / std::sqrt(dims)),
          .weight_factor = static_cast<float>(1.0 / std::sqrt(dims * heads)),
          .rounding = p.rounding};
}

// Rows of 128 dims, as the models have, are kept in registers, four dims a lane.
constexpr int kIndexDims = 128;

__device__ inline bool FitsRegisters(const IndexQueryArgs& args) {
  return args.dims == kIndexDims && args.num_pairs <= 32 && args.num_pairs % 2 == 0 &&
         args.head_stride % 4 == 0 && args.token_stride % 4 == 0;
}

// HadamardRow: the same operations in the same order.
__device__ inline void HadamardValues(float (&v)[4], float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float first[4] = {v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3]};
  const float second[4] = {first[0] + first[2], first[1] + first[3], first[0] - first[2],
                           first[1] - first[3]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = second[i];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float other = __shfl_xor_sync(~0u, v[i], offset);
      v[i] = (lane & offset) == 0 ? v[i] + other : other - v[i];
    }
    v[i] *= factor;
  }
}

// RoundQuery.
__device__ inline float RoundValues(IndexRounding rounding, float (&v)[4]) {
  if (rounding == IndexRounding::kNone) return 1.0f;
  float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  const int lanes = rounding == IndexRounding::kFp4 ? kFp4Group / 4 : 32;
  for (int offset = 1; offset < lanes; offset *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, offset));
  }
  if (rounding == IndexRounding::kFp4) {
    const float scale = E8m0ToFloat(Fp4GroupScale(amax));
#pragma unroll
    for (float& value : v) value = E2m1ToFloat(FloatToE2m1(__fdiv_rn(value, scale))) * scale;
    return 1.0f;
  }
  const float scale = Fp8RowScale(amax);
#pragma unroll
  for (float& value : v) value = E4m3ToFloat(FloatToE4m3(__fdiv_rn(value, scale)));
  return scale;
}

// Returns the scale of the head.
__device__ inline float TransformInRegisters(const IndexQueryArgs& args, uint16_t* q,
                                             int32_t position) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float values[4];
  LoadValues(q + 4 * lane, values);
  const LaneAngle angle = FindAngle(position, args.freqs, args.num_pairs);
  RotateValues(angle, 4 * lane - (kIndexDims - 2 * args.num_pairs), values);
  HadamardValues(values, args.hadamard_factor);
#pragma unroll
  for (float& value : values) value = RoundToBf16(value);
  const float scale = RoundValues(args.rounding, values);
  StoreValues(values, q + 4 * lane);
  return scale;
}

__device__ inline float TransformInMemory(const IndexQueryArgs& args, uint16_t* q,
                                          int32_t position, float* row) {
  LoadRow<32>(q, args.dims, row);
  RotateTail<32>(row, args.dims, args.num_pairs, position, args.freqs);
  HadamardRow<32>(row, args.dims, args.hadamard_factor);
  RoundRow<32>(row, args.dims);
  const float scale = RoundQuery(args.rounding, row, args.dims);
  StoreRow<32>(row, args.dims, q);
  return scale;
}

// Head `index` of all tokens', by one warp.
__device__ inline void MakeIndexQuery(const IndexQueryArgs& args, int64_t index, float* row) {
  const int64_t token = index / args.num_heads;
  const int64_t head = index % args.num_heads;
  uint16_t* const q = args.q + token * args.token_stride + head * args.head_stride;
  const int32_t position = args.positions[token];
  const float scale = FitsRegisters(args) ? TransformInRegisters(args, q, position)
                                          : TransformInMemory(args, q, position, row);
  if (threadIdx.x % 32 == 0) {
    const float raw = Bf16ToFloat(args.raw_weight[token * args.raw_stride + head]);
    args.weight[token * args.weight_stride + head] = RoundToBf16(raw * args.weight_factor) * scale;
  }
}

}  // namespace lodestone::cuda

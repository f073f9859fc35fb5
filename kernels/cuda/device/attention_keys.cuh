#pragma once

#include <cstdint>

#include "kernels/cuda/launchers.h"

// The keys of one token (SparseAttentionParams): window positions ascending, then entries.
namespace lodestone::cuda {

struct KeyRow {
  const uint8_t* payload;
  const uint8_t* scale;  // kFp8, except for the batch's own latents, which are bf16
  bool own;              // a latent of this batch, not yet stored in the ring
};

struct TokenKeys {
  int32_t position;
  int32_t seq;
  int32_t first_token;     // of the sequence in this batch; negative if it begins before token 0
  int32_t first_position;  // its position
  int32_t slot;
  int num_window;
  int num_entries;
  __device__ int size() const { return num_window + num_entries; }
};

// Of one token; `num_entries` is 0 under ratio 4, where top_entries must be counted.
__device__ inline TokenKeys FindKeys(const SparseAttentionArgs& args, int64_t token) {
  TokenKeys keys;
  keys.position = args.positions[token];
  keys.seq = args.token_seq[token];
  keys.first_token = args.seq_first[keys.seq] - static_cast<int32_t>(args.first_token);
  keys.first_position = keys.position - (static_cast<int32_t>(token) - keys.first_token);
  keys.slot = args.seq_slot[keys.seq];
  keys.num_window = min(static_cast<int>(args.window), keys.position + 1);
  keys.num_entries = args.ratio == 128 ? (keys.position + 1) / 128 : 0;
  return keys;
}

// Key `index` < num_window.
__device__ inline KeyRow FindWindowRow(const SparseAttentionArgs& args, const TokenKeys& keys,
                                       int index) {
  const int position = keys.position - keys.num_window + 1 + index;
  if (position >= keys.first_position) {
    const int64_t own = keys.first_token + position - keys.first_position;
    return {reinterpret_cast<const uint8_t*>(args.latents + own * args.head_dim), nullptr, true};
  }
  const RowBytes bytes = LatentRowBytes(args.format, args.head_dim, args.rope_dims);
  const int64_t row = position % static_cast<int>(args.window);
  return {args.ring.payload + keys.slot * args.ring.payload_block_stride + row * bytes.payload,
          args.ring.scale + keys.slot * args.ring.scale_block_stride + row * bytes.scale, false};
}

__device__ inline KeyRow FindEntryRow(const SparseAttentionArgs& args, const TokenKeys& keys,
                                      int entry) {
  const RowBytes bytes = LatentRowBytes(args.format, args.head_dim, args.rope_dims);
  const int per_page = kPageTokens / static_cast<int>(args.ratio);
  const int64_t page = args.block_table[keys.seq * args.max_pages + entry / per_page];
  const int64_t row = entry % per_page;
  return {args.entries.payload + page * args.entries.payload_block_stride + row * bytes.payload,
          args.entries.scale + page * args.entries.scale_block_stride + row * bytes.scale, false};
}

// cos and sin of pair `pair` of the rotary dims at `position`; the angle is the fp32 product.
__device__ inline float2 RopeAngle(int32_t position, float freq) {
  float2 angle;
  sincosf(__fmul_rn(static_cast<float>(position), freq), &angle.y, &angle.x);
  return angle;
}

// (x, y) rotated by minus the angle, without fused operations.
__device__ inline float2 RotateBack(float x, float y, float2 angle) {
  return {__fadd_rn(__fmul_rn(x, angle.x), __fmul_rn(y, angle.y)),
          __fsub_rn(__fmul_rn(y, angle.x), __fmul_rn(x, angle.y))};
}

}  // namespace lodestone::cuda

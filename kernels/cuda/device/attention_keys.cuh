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
  int32_t first_token;     // of the sequence in this batch
  int32_t first_position;  // its position
  int32_t slot;
  int num_window;
  int num_entries;
  __device__ int size() const { return num_window + num_entries; }
};

// Entries this thread block's token attends to under ratio 4. By all threads of the block.
__device__ inline int CountEntries(const SparseAttentionArgs& args, int64_t token) {
  int count = 0;
  for (int64_t first = 0; first < args.k; first += blockDim.x) {
    const int64_t at = first + threadIdx.x;
    count += __syncthreads_count(at < args.k && args.top_entries[token * args.k + at] >= 0);
  }
  return count;
}

// By all threads of the block.
__device__ inline TokenKeys FindKeys(const SparseAttentionArgs& args, int64_t token) {
  TokenKeys keys;
  keys.position = args.positions[token];
  keys.seq = args.token_seq[token];
  keys.first_token = args.seq_first[keys.seq];
  keys.first_position = args.positions[keys.first_token];
  keys.slot = args.seq_slot[keys.seq];
  keys.num_window = min(static_cast<int>(args.window), keys.position + 1);
  keys.num_entries = 0;
  if (args.ratio == 4) keys.num_entries = CountEntries(args, token);
  if (args.ratio == 128) keys.num_entries = (keys.position + 1) / 128;
  return keys;
}

// Key `index` of the token. REQUIRES: index < keys.size().
__device__ inline KeyRow FindKeyRow(const SparseAttentionArgs& args, const TokenKeys& keys,
                                    int64_t token, int index) {
  const RowBytes bytes = LatentRowBytes(args.format, args.head_dim, args.rope_dims);
  if (index < keys.num_window) {
    const int position = keys.position - keys.num_window + 1 + index;
    if (position >= keys.first_position) {
      const int64_t own = keys.first_token + position - keys.first_position;
      return {reinterpret_cast<const uint8_t*>(args.latents + own * args.head_dim), nullptr, true};
    }
    const int64_t row = position % args.window;
    return {args.ring.payload + keys.slot * args.ring.payload_block_stride + row * bytes.payload,
            args.ring.scale + keys.slot * args.ring.scale_block_stride + row * bytes.scale, false};
  }
  const int listed = index - keys.num_window;
  const int entry = args.ratio == 4 ? args.top_entries[token * args.k + listed] : listed;
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
